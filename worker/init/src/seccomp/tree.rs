//! Compiles a profile to classic BPF. The program finds a call's rule by binary search over ranges of numbers with the
//! same rule. It looks at arguments only in the leaves.
//!
//! ```text
//! architecture ≠ x86-64 ─► kill the process
//! number ─► ≥ k? ─► ≥ k? ─► … ─► verdict
//!                             └► argument = v? ─► … ─► verdict
//! ```
//!
//! Jumps only go forward, conditional ones over at most 255 instructions. So the program is emitted from its end to its
//! beginning, where every target is known. A target that is too far away gets a nearby copy of the verdict, or a nearby
//! unconditional jump.

use seccompiler::{BpfProgram, sock_filter};

/// The decision about a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Allow,
    /// The call fails with this error number and is not executed.
    Errno(i32),
    Kill,
}

impl Verdict {
    /// The value that the program returns.
    pub(super) const fn action(self) -> u32 {
        match self {
            Self::Allow => libc::SECCOMP_RET_ALLOW,
            Self::Errno(number) => libc::SECCOMP_RET_ERRNO | number.cast_unsigned(),
            Self::Kill => libc::SECCOMP_RET_KILL_PROCESS,
        }
    }
}

/// How a call is decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    Always(Verdict),
    /// By the first matching clause, or by the verdict if none matches.
    First(&'static [Clause], Verdict),
}

/// A verdict for calls that meet all conditions.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Clause {
    pub(super) when: &'static [Condition],
    pub(super) verdict: Verdict,
}

/// A word of `struct seccomp_data`, masked with `mask`, is one of `values`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Condition {
    /// Offset in bytes.
    pub(super) word: u32,
    pub(super) mask: u32,
    pub(super) values: &'static [u32],
}

// Offsets in `struct seccomp_data`.
pub(super) const NUMBER: u32 = 0;
pub(super) const ARCHITECTURE: u32 = 4;

/// Offset of an argument's lower half, which holds all of a 32-bit argument.
pub(super) const fn argument(number: u32) -> u32 {
    16 + 8 * number
}

/// Offset of an argument's upper half.
pub(super) const fn upper_half(number: u32) -> u32 {
    argument(number) + 4
}

/// `AUDIT_ARCH_X86_64`: a 64-bit little-endian machine of ELF number 62.
pub(super) const X86_64: u32 = 0xc000_003e;

// Instructions of the machine. At a restore, the kernel evaluates these for a call without making it. It cannot
// evaluate others.
pub(super) const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
pub(super) const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
pub(super) const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
pub(super) const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
pub(super) const IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
pub(super) const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// Maximum distance of a target when a conditional jump is about to be written. At most two more instructions are
/// written before it, so the distance still fits in a byte.
const REACH: usize = 250;

/// A program that decides each call by its rule in `table`, indexed by number. Higher numbers have the last rule.
pub(super) fn compile(table: &[Rule]) -> BpfProgram {
    let mut code = ReversedProgram::default();
    let root = code.search(&ranges(table));
    code.fall_to(root);
    let search = code.push(LOAD, NUMBER);
    code.branch(IF_EQUAL, X86_64, Target::At(search), Target::Return(Verdict::Kill));
    code.push(LOAD, ARCHITECTURE);
    code.written.reverse();
    code.written
}

/// The first number of each run of equal rules.
fn ranges(table: &[Rule]) -> Vec<(u32, Rule)> {
    let mut ranges: Vec<(u32, Rule)> = Vec::new();
    for (number, rule) in (0..).zip(table) {
        if ranges.last().is_none_or(|(_, last)| last != rule) {
            ranges.push((number, *rule));
        }
    }
    ranges
}

/// Target of a jump: an instruction, by its distance from the program's end, or any copy of a verdict.
#[derive(Clone, Copy)]
enum Target {
    At(usize),
    Return(Verdict),
}

/// A program in reverse, from its last instruction on.
#[derive(Default)]
struct ReversedProgram {
    written: BpfProgram,
    /// Verdicts written so far, with their positions.
    answers: Vec<(Verdict, usize)>,
}

impl ReversedProgram {
    fn search(&mut self, ranges: &[(u32, Rule)]) -> Target {
        match ranges {
            [] => Target::Return(Verdict::Kill),
            [(_, rule)] => self.rule(*rule),
            _ => {
                let (below, above) = ranges.split_at(ranges.len() / 2);
                let from = above[0].0;
                let above = self.search(above);
                let below = self.search(below);
                self.branch(IF_AT_LEAST, from, above, below)
            }
        }
    }

    fn rule(&mut self, rule: Rule) -> Target {
        let (clauses, otherwise) = match rule {
            Rule::Always(verdict) => return Target::Return(verdict),
            Rule::First(clauses, otherwise) => (clauses, otherwise),
        };
        let mut next = Target::Return(otherwise);
        for clause in clauses.iter().rev() {
            let conditions = clause.when.iter().rev();
            next = conditions.fold(Target::Return(clause.verdict), |then, condition| {
                self.condition(condition, then, next)
            });
        }
        next
    }

    fn condition(&mut self, condition: &Condition, met: Target, unmet: Target) -> Target {
        let values = condition.values.iter().rev();
        let first = values.fold(unmet, |otherwise, value| self.branch(IF_EQUAL, *value, met, otherwise));
        self.fall_to(first);
        if condition.mask != u32::MAX {
            self.push(AND, condition.mask);
        }
        Target::At(self.push(LOAD, condition.word))
    }

    fn branch(&mut self, test: u16, with: u32, yes: Target, no: Target) -> Target {
        let (yes, no) = (self.near(yes), self.near(no));
        let here = self.written.len();
        let over = |target: usize| u8::try_from(here - target - 1).expect("REACH bounds it");
        let (jt, jf) = (over(yes), over(no));
        self.written.push(sock_filter {
            code: test,
            jt,
            jf,
            k: with,
        });
        Target::At(here)
    }

    /// Position of an instruction that leads to `target` and is within reach of a jump from here.
    fn near(&mut self, target: Target) -> usize {
        let here = self.written.len();
        let known = match target {
            Target::At(place) => Some(place),
            Target::Return(verdict) => self.answers.iter().rev().find(|a| a.0 == verdict).map(|a| a.1),
        };
        match (known, target) {
            (Some(place), _) if here - place <= REACH => place,
            (_, Target::Return(verdict)) => {
                self.answers.push((verdict, here));
                self.push(RETURN, verdict.action())
            }
            (_, Target::At(place)) => self.jump(place),
        }
    }

    /// Ensures that the next instruction written continues at `target`.
    fn fall_to(&mut self, target: Target) {
        let place = self.near(target);
        if place + 1 != self.written.len() {
            self.jump(place);
        }
    }

    fn jump(&mut self, place: usize) -> usize {
        let over = u32::try_from(self.written.len() - place - 1).expect("a program has 4096 instructions at most");
        self.push(JUMP, over)
    }

    fn push(&mut self, code: u16, k: u32) -> usize {
        self.written.push(sock_filter { code, jt: 0, jf: 0, k });
        self.written.len() - 1
    }
}
