//! Where programs find the library.

use std::{
    io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

/// The built library, as seen from a test's program: beside it, or one folder up.
///
/// # Errors
/// When there is none in either place.
pub fn library() -> io::Result<PathBuf> {
    let program = std::env::current_exe()?;
    program
        .ancestors()
        .skip(1)
        .take(2)
        .flat_map(|folder| [folder.to_owned(), folder.join("deps")])
        .map(|folder| folder.join("libringway_cuda_stand_in.so"))
        .find(|file| file.is_file())
        .ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, "the stand-in's library is not beside the program")
        })
}

/// Puts links to the library into a folder, for `LD_LIBRARY_PATH`. Under both names, as programs that try the shorter
/// one first would find NVIDIA's with it where that is installed.
///
/// # Errors
/// When there is no library or the folder does not take the links.
pub fn install(folder: &Path) -> io::Result<()> {
    let library = library()?;
    for name in ["libcuda.so", "libcuda.so.1"] {
        symlink(&library, folder.join(name))?;
    }
    Ok(())
}
