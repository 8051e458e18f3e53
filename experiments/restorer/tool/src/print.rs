//! Prints a program.

use anyhow::{Result, anyhow};
use restore_program::{Code, Program};

/// Prints each operation of a program and each thread.
pub fn program(bytes: &[u8]) -> Result<()> {
    let program = Program::parse(bytes).map_err(|_| anyhow!("no program"))?;
    let header = program.header();
    let (bytes, processes, end) = (header.size, header.processes.count, header.descriptors_end);
    println!("{bytes} bytes, {processes} processes, descriptors below {end}");
    for number in 0..processes {
        println!("process {number}");
        one(program.of(number).ok_or_else(|| anyhow!("no process"))?);
    }
    Ok(())
}

fn one(program: Program<'_>) {
    for op in program.ops() {
        let code = Code::of(op.code).map_or_else(|| "?".to_owned(), |code| format!("{code:?}"));
        let paths = matches!(Code::of(op.code), Some(Code::Open | Code::Directory));
        let text = if paths {
            program.part(op.args[0], op.args[1]).unwrap_or_default()
        } else {
            &[]
        };
        let args: Vec<String> = op.args.iter().map(|arg| format!("{arg:x}")).collect();
        println!(
            "{code:14} {:x} {} {}",
            op.a,
            args.join(" "),
            String::from_utf8_lossy(text).trim_end_matches('\0')
        );
    }
    for thread in program.threads() {
        let name = String::from_utf8_lossy(&thread.name);
        println!(
            "thread {} {} frame of {} bytes",
            thread.id,
            name.trim_end_matches('\0'),
            thread.frame.count
        );
    }
}
