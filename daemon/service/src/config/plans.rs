//! Plans that are read from files.

use std::{fs::File, io::Read as _, path::Path, sync::Arc};

use ringway_group::PLANS_MAX;
use ringway_plan::{
    file::{FILE_BYTES_MAX, Listed},
    tuner::Order,
};

use super::{ConfigError, resolve::invalid};

/// Reads all plans and proves them right, and that they combine as the order promises.
pub(super) fn read(files: &[String], order: Order) -> Result<Vec<Arc<Listed>>, ConfigError> {
    if files.len() > PLANS_MAX {
        return Err(invalid(
            "plans",
            format!("{} files", files.len()),
            format!("expected at most {PLANS_MAX}"),
        ));
    }
    let plan = |file: &String| {
        let wrong = |error: &dyn ToString| invalid("plans", file, error.to_string());
        let text = contents(Path::new(file)).map_err(|error| wrong(&error))?;
        let listed = Listed::read(&text).map(Arc::new).map_err(|error| wrong(&error))?;
        if order == Order::Strict {
            listed.check_strict().map_err(|error| wrong(&format!("order = \"strict\": {error}")))?;
        }
        Ok(listed)
    };
    files.iter().map(plan).collect()
}

/// A file's text, of a little more than a plan may have at most.
fn contents(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(FILE_BYTES_MAX as u64 + 1).read_to_string(&mut text)?;
    Ok(text)
}
