//! What the interpreter makes of texts that no kernel has: errors that say where and why.

#![expect(clippy::expect_used, clippy::panic, reason = "tests may panic")]

use ringway_cuda_stand_in::interpreter::Module;

/// A kernel with these instructions, the first of which is on line 11.
fn text(instructions: &str) -> String {
    format!(
        ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry kernel(\n\t.param .u64 at,\n\
         \t.param .align 8 .b8 list[16]\n)\n{{\n\t.reg .b32 %r<4>;\n\t.reg .b64 %d<2>;\n{instructions}\n}}\n"
    )
}

fn run(instructions: &str, parameters: &[u8]) -> Result<(), String> {
    let module = Module::parse(&text(instructions)).unwrap_or_else(|error| panic!("{error}"));
    // SAFETY: the kernels here access the parameters' own memory only, or are refused before.
    unsafe { module.entry("kernel").expect("there").run(parameters, 2, 3) }
}

#[test]
fn what_is_not_understood_is_told_with_its_line() {
    for (instruction, why) in [
        ("fma.rn.f32 %r0, %r1, %r2, %r3;", "line 11: unknown instruction: `fma.rn.f32"),
        ("add.rn.f32 %r0, %r1;", "line 11: `add.rn.f32` takes 2 operands"),
        ("add.rn.f32 %r0, %r1, %d0;", "line 11: `%d0` has another size"),
        ("add.u32 %d0, %r1, %r1;", "line 11: `%d0` has another size"),
        ("add.u32 %r4, %r1, %r1;", "line 11: `%r4` is no register"),
        ("add.u32 %r0, %r1, 0x100000000;", "line 11: `0x100000000` is too large"),
        ("mov.u32 %tid.x, %r1;", "line 11: `%tid.x` cannot be written"),
        ("ld.param.u64 %d0, [list+12];", "line 11: the parameter holds no such number there"),
        ("ld.param.u64 %d0, [none];", "line 11: there is no such parameter"),
        ("ld.global.v4.b32 {%r0, %r1}, [%d0];", "line 11: 4 registers are accessed, 2 given"),
        ("ld.shared.b32 %r0, [%d0];", "line 11: unknown access"),
        ("ret", "line 11: an instruction ends with a semicolon"),
        ("bra $nowhere;", "line 12: there is no label `$nowhere`"),
    ] {
        let error = Module::parse(&text(instruction)).expect_err(instruction);
        assert!(error.starts_with(why), "{instruction}: {error}");
    }
}

#[test]
fn a_launch_that_a_driver_refuses_is_refused() {
    let misaligned = "ld.param.u64 %d0, [at];\nld.global.b32 %r0, [%d0];\nret;";
    let mut parameters = [0; 24];
    parameters[0] = 6;
    let error = run(misaligned, &parameters).expect_err("misaligned");
    assert_eq!(error, "line 12: misaligned address: 4 bytes are accessed at 0x6");
    assert_eq!(run("ret;", &parameters[..23]), Err("`kernel` takes 24 bytes, not 23".into()));
    assert_eq!(run("ret;", &parameters), Ok(()));
}

#[test]
fn every_thread_runs_with_its_own_place() {
    let mut cells = [0_u32; 6];
    let at = cells.as_mut_ptr().expose_provenance() as u64;
    let parameters: Vec<u8> = [at, 0, 0].iter().flat_map(|v| v.to_le_bytes()).collect();
    let instructions = "mov.u32 %r0, %ctaid.x;\nmov.u32 %r1, %ntid.x;\nmul.lo.u32 %r0, %r0, %r1;\n\
        mov.u32 %r2, %tid.x;\nadd.u32 %r0, %r0, %r2;\nmul.wide.u32 %d1, %r0, 4;\nld.param.u64 %d0, [at];\n\
        add.u64 %d0, %d0, %d1;\nadd.u32 %r3, %r0, 10;\nst.global.b32 [%d0], %r3;\nret;";
    run(instructions, &parameters).expect("a launch");
    assert_eq!(cells, [10, 11, 12, 13, 14, 15]);
}
