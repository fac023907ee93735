//! Where the dynamic loader would find a library: as it looks itself (ld.so(8)), but that nothing is loaded.

use std::{env, fs};

use ringway_topology::Tree;

/// The path of a library, by its name; `None` if it would not be found.
pub(super) fn find(tree: &Tree, name: &str) -> Option<String> {
    let paths = env::var("LD_LIBRARY_PATH").unwrap_or_default();
    let given = paths.split([':', ';']).filter(|folder| folder.starts_with('/')).map(str::to_owned);
    let of_user = given.map(|folder| format!("{}/{name}", folder.trim_end_matches('/')));
    let triple = format!("{}-linux-gnu", env::consts::ARCH);
    let usual =
        ["lib64", "usr/lib64", "lib", "usr/lib", &format!("lib/{triple}"), &format!("usr/lib/{triple}")]
            .map(|folder| format!("/{folder}/{name}"));
    let mut all = of_user.chain(cached(tree, name)).chain(usual);
    all.find(|path| tree.path(path).is_file())
}

/// Paths in the loader's cache, which has them as texts that end with a zero byte, whatever else its format is.
fn cached(tree: &Tree, name: &str) -> Vec<String> {
    let cache = fs::read(tree.path("etc/ld.so.cache")).unwrap_or_default();
    let texts = cache.split(|byte| *byte == 0).filter_map(|text| core::str::from_utf8(text).ok());
    let is_it = |path: &&str| {
        path.strip_suffix(name).is_some_and(|folder| folder.starts_with('/') && folder.ends_with('/'))
    };
    texts.filter(is_it).map(str::to_owned).collect()
}

/// How many device drivers are in the folder that libibverbs has for them.
pub(super) fn providers(tree: &Tree, library: &str) -> usize {
    let folder = library.rsplit_once('/').map_or("", |(folder, _)| folder);
    let names = tree.names(&format!("{folder}/libibverbs"));
    names.iter().filter(|name| name.contains("-rdmav") && name.ends_with(".so")).count()
}
