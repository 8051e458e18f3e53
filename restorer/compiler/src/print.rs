//! A program as text, one operation a line.

use std::fmt;

use rekindle_restore_program::{Code, Malformed, Program};

/// A program that is printed.
pub struct Printed<'a>(Program<'a>);

impl<'a> Printed<'a> {
    /// Reads a program.
    ///
    /// # Errors
    /// If it is none.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        Program::parse(bytes).map(Self)
    }
}

impl fmt::Display for Printed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header = self.0.header();
        let (bytes, processes, end) = (header.size, header.processes.count, header.descriptors_end);
        writeln!(f, "{bytes} bytes, processes: {processes}, descriptors below {end}")?;
        // Processes of a table that reaches beyond the end are none.
        for number in (0..processes).take_while(|number| self.0.of(*number).is_some()) {
            writeln!(f, "process {number}")?;
            if let Some(process) = self.0.of(number) {
                one(f, process)?;
            }
        }
        Ok(())
    }
}

fn one(f: &mut fmt::Formatter<'_>, program: Program<'_>) -> fmt::Result {
    for op in program.ops() {
        let code = Code::of(op.code);
        match code {
            Some(code) => write!(f, "  {:14}", format!("{code:?}"))?,
            None => write!(f, "  {:<14}", op.code)?,
        }
        write!(f, " {:x}", op.a)?;
        for arg in op.args {
            write!(f, " {arg:x}")?;
        }
        let names = match code {
            Some(Code::Open | Code::OpenOwn | Code::Create | Code::MemoryFile | Code::Unlink | Code::Directory) => {
                &op.args[..2]
            }
            Some(Code::Link) => &op.args[..4],
            _ => &[],
        };
        for name in names.as_chunks::<2>().0 {
            let name = program.part(name[0], name[1]).unwrap_or_default();
            let name = name.strip_suffix(&[0]).unwrap_or(name);
            write!(f, " {}", name.escape_ascii())?;
        }
        writeln!(f)?;
    }
    for thread in program.threads() {
        let name = thread.name.split(|byte| *byte == 0).next().unwrap_or_default();
        let (id, bytes) = (thread.id, thread.frame.count);
        writeln!(f, "  thread {id} {}, a frame of {bytes} bytes", name.escape_ascii())?;
    }
    Ok(())
}
