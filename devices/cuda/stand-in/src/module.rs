//! Modules of kernels.

use std::{
    ffi::{CStr, c_char, c_uint, c_void},
    sync::Arc,
};

use crate::{
    call::{Out, Status, in_context, put},
    error::{Failure, Result},
    interpreter::{Entry, Module},
    state::lock,
};

const ELF: &[u8] = b"\x7fELF";
/// What fat binaries begin with.
const FAT_BINARY: &[u8] = &0xba55_ed50_u32.to_le_bytes();
/// `CU_JIT_ERROR_LOG_BUFFER`, and that of its size.
const ERROR_LOG: c_uint = 5;
const ERROR_LOG_BYTES: c_uint = 6;

#[derive(Debug)]
pub(crate) struct Loaded {
    module: Arc<Module>,
}

#[derive(Debug, Clone)]
pub(crate) struct Function {
    /// The module's handle.
    loaded: usize,
    module: Arc<Module>,
    name: String,
}

impl Function {
    pub(crate) fn entry(&self) -> Result<&Entry> {
        self.module.entry(&self.name).ok_or(Failure::NOT_FOUND)
    }
}

/// Loads a text, or says what of it is not understood.
fn load(module: Out<'_, usize>, image: *const c_void) -> Result<std::result::Result<(), String>> {
    let module = module.filter(|_| !image.is_null()).ok_or(Failure::INVALID_VALUE)?;
    // SAFETY: not null, and the caller keeps to cuda.h: PTX ends with a zero. Of an image in another format no more is
    // read than up to a zero, which all have in their first words.
    let image = unsafe { CStr::from_ptr(image.cast()) };
    if [ELF, FAT_BINARY].iter().any(|start| image.to_bytes().starts_with(start)) {
        return Err(Failure::NO_BINARY_FOR_GPU);
    }
    let text = image.to_str().map_err(|_| Failure::INVALID_PTX)?;
    let parsed = match Module::parse(text) {
        Ok(parsed) => parsed,
        Err(why) => return Ok(Err(why)),
    };
    let mut state = lock();
    let made = state.number();
    state.modules.insert(made, Loaded { module: Arc::new(parsed) });
    module.write(made);
    Ok(Ok(()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(module: Out<'_, usize>, image: *const c_void) -> Status {
    in_context("cuModuleLoadData", |_| load(module, image)?.map_err(|_| Failure::INVALID_PTX))
}

/// Writes to the log for errors that the options name, if they do.
///
/// # Safety
/// There are so many options and values, and the buffer among them has the size that is among them.
unsafe fn log(count: c_uint, options: *const c_uint, values: *const usize, why: &str) {
    let (mut buffer, mut room) = (0, 0);
    for place in 0..count as usize {
        // SAFETY: the caller says that there are so many.
        let option = unsafe { options.wrapping_add(place).read() };
        // SAFETY: as above.
        let value = unsafe { values.wrapping_add(place).read() };
        match option {
            ERROR_LOG => buffer = value,
            // The size is the value itself, in its lower half.
            ERROR_LOG_BYTES => room = value & 0xffff_ffff,
            _ => {}
        }
    }
    if buffer == 0 || room == 0 {
        return;
    }
    let length = why.len().min(room - 1);
    let buffer = std::ptr::with_exposed_provenance_mut::<u8>(buffer);
    // SAFETY: less than the room that the caller says there is, and no longer than the text, which is not the caller's.
    unsafe { std::ptr::copy_nonoverlapping(why.as_ptr(), buffer, length) };
    // SAFETY: `length` is less than the room.
    unsafe { buffer.wrapping_add(length).write(0) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadDataEx(
    module: Out<'_, usize>,
    image: *const c_void,
    count: c_uint,
    options: *const c_uint,
    values: *const usize,
) -> Status {
    in_context("cuModuleLoadDataEx", |_| {
        if count > 0 && (options.is_null() || values.is_null()) {
            return Err(Failure::INVALID_VALUE);
        }
        load(module, image)?.map_err(|why| {
            // SAFETY: the caller keeps to cuda.h, which asks for this.
            unsafe { log(count, options, values, &why) };
            Failure::INVALID_PTX
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleUnload(module: usize) -> Status {
    in_context("cuModuleUnload", |_| {
        let mut state = lock();
        state.modules.remove(&module).ok_or(Failure::INVALID_HANDLE)?;
        // Kernels that are queued hold the module themselves.
        state.functions.retain(|_, function| function.loaded != module);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(
    function: Out<'_, usize>,
    module: usize,
    name: *const c_char,
) -> Status {
    in_context("cuModuleGetFunction", |_| {
        if name.is_null() {
            return Err(Failure::INVALID_VALUE);
        }
        // SAFETY: not null, and the caller keeps to cuda.h: the name ends with a zero.
        let name = unsafe { CStr::from_ptr(name) };
        let name = name.to_str().map_err(|_| Failure::NOT_FOUND)?.to_owned();
        let mut state = lock();
        let of = Arc::clone(&state.modules.get(&module).ok_or(Failure::INVALID_HANDLE)?.module);
        let found = Function { loaded: module, module: of, name };
        found.entry()?;
        let made = state.number();
        put(function, made)?;
        state.functions.insert(made, found);
        Ok(())
    })
}
