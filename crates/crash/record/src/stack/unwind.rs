//! Unwinds from an address in a function to its caller, by the tables that compilers emit for
//! exceptions.
//!
//! Only callee-saved registers can be known, and of these only values saved on the stack. An
//! unknown register gets no assumed value: a step that needs one ends the unwinding.

use gimli::{
    BaseAddresses, CfaRule, CieOrFde, EhFrame, EhFrameOffset, EndianArcSlice, EvaluationResult, LittleEndian,
    Location, Register, RegisterRule, UnwindContext, UnwindExpression, UnwindSection, Value, X86_64,
};
use std::ops::Range;

pub(super) type Bytes = EndianArcSlice<LittleEndian>;

/// The most steps of an expression that computes an address.
const EXPRESSION_STEPS_MAX: u32 = 1000;
/// The callee-saved registers of the x86-64 calling convention.
const KEPT: [Register; 6] = [X86_64::RBX, X86_64::RBP, X86_64::R12, X86_64::R13, X86_64::R14, X86_64::R15];
/// The program counter and the stack pointer, which are tracked in addition.
const OTHERS: [Register; 2] = [X86_64::RA, X86_64::RSP];

/// The registers in a function on the stack: first the callee-saved ones, then the others.
#[derive(Clone, Copy, Default)]
pub(super) struct Registers([Option<u64>; KEPT.len() + OTHERS.len()]);

impl Registers {
    pub fn new(pc: u64, sp: u64) -> Registers {
        let mut registers = Registers::default();
        registers.set(X86_64::RA, Some(pc));
        registers.set(X86_64::RSP, Some(sp));
        registers
    }

    pub fn get(&self, register: Register) -> Option<u64> {
        self.0[place(register)?]
    }

    /// Sets a register. Registers that are not tracked are ignored.
    pub fn set(&mut self, register: Register, value: Option<u64>) {
        if let Some(place) = place(register) {
            self.0[place] = value;
        }
    }
}

fn place(register: Register) -> Option<usize> {
    KEPT.into_iter().chain(OTHERS).position(|r| r == register)
}

/// The result of unwinding one function.
pub(super) enum Step {
    /// The caller's registers.
    Caller(Registers),
    /// The function is the outermost one.
    Top,
    /// The function addresses its stack by the frame pointer, as compilers set it up, and the frame
    /// pointer is unknown.
    NeedsFrame,
    Unknown,
}

struct Function {
    range: Range<u64>,
    entry: EhFrameOffset,
}

/// The unwind tables of a binary, from `.eh_frame`.
pub(super) struct Tables {
    frames: EhFrame<Bytes>,
    bases: BaseAddresses,
    /// Sorted by address.
    functions: Vec<Function>,
}

impl Tables {
    /// Reads the tables. Malformed entries are skipped.
    pub fn read(section: Bytes, address: u64) -> Tables {
        let frames = EhFrame::from(section);
        let bases = BaseAddresses::default().set_eh_frame(address);
        let mut functions = Vec::new();
        let mut entries = frames.entries(&bases);
        while let Ok(Some(entry)) = entries.next() {
            let CieOrFde::Fde(entry) = entry else { continue };
            let Ok(entry) = entry.parse(EhFrame::cie_from_offset) else { continue };
            let range = entry.initial_address()..entry.initial_address().saturating_add(entry.len());
            functions.push(Function { range, entry: EhFrameOffset(entry.offset()) });
        }
        functions.sort_by_key(|f| f.range.start);
        Tables { frames, bases, functions }
    }

    fn find(&self, address: u64) -> Option<&Function> {
        let behind = self.functions.partition_point(|f| f.range.start <= address);
        self.functions[..behind].last().filter(|f| f.range.contains(&address))
    }

    /// The address at which the function at an address begins.
    pub fn start(&self, address: u64) -> Option<u64> {
        self.find(address).map(|f| f.range.start)
    }

    /// Unwinds the function at an address. `word` reads the stack.
    pub fn caller(&self, address: u64, now: &Registers, word: &dyn Fn(u64) -> Option<u64>) -> Step {
        self.try_caller(address, now, word).unwrap_or(Step::Unknown)
    }

    fn try_caller(&self, address: u64, now: &Registers, word: &dyn Fn(u64) -> Option<u64>) -> Option<Step> {
        let function = self.find(address)?;
        let entry =
            self.frames.fde_from_offset(&self.bases, function.entry, EhFrame::cie_from_offset).ok()?;
        let mut context = UnwindContext::new();
        let row = entry.unwind_info_for_address(&self.frames, &self.bases, &mut context, address).ok()?;
        let back = row.register(X86_64::RA)?;
        if back == RegisterRule::Undefined {
            return Some(Step::Top);
        }
        let cfa = match row.cfa() {
            // The frame address is RBP plus 16, above the saved frame pointer and the return
            // address.
            CfaRule::RegisterAndOffset { register: X86_64::RBP, offset: 16 }
                if now.get(X86_64::RBP).is_none() =>
            {
                return Some(Step::NeedsFrame);
            }
            CfaRule::RegisterAndOffset { register, offset } => {
                now.get(*register)?.checked_add_signed(*offset)?
            }
            CfaRule::Expression(e) => self.evaluate(e, None, entry.cie().encoding(), now, word)?,
        };
        // The stack grows down, so a caller's frame must be above. A signal handler on an alternate
        // stack ends the unwinding.
        if cfa <= now.get(X86_64::RSP)? {
            return None;
        }
        let value = |register, rule| match rule {
            // Without a rule the calling convention applies: the function has kept the register.
            None | Some(RegisterRule::SameValue) => now.get(register),
            Some(RegisterRule::Offset(offset)) => word(cfa.checked_add_signed(offset)?),
            Some(RegisterRule::ValOffset(offset)) => cfa.checked_add_signed(offset),
            Some(RegisterRule::Register(other)) => now.get(other),
            Some(RegisterRule::Expression(e)) => {
                word(self.evaluate(&e, Some(cfa), entry.cie().encoding(), now, word)?)
            }
            Some(RegisterRule::ValExpression(e)) => {
                self.evaluate(&e, Some(cfa), entry.cie().encoding(), now, word)
            }
            Some(_) => None,
        };
        let mut caller = Registers::new(value(X86_64::RA, Some(back))?, cfa);
        for register in KEPT {
            caller.set(register, value(register, row.register(register)));
        }
        Some(Step::Caller(caller))
    }

    fn evaluate(
        &self,
        expression: &UnwindExpression<usize>,
        start: Option<u64>,
        encoding: gimli::Encoding,
        now: &Registers,
        word: &dyn Fn(u64) -> Option<u64>,
    ) -> Option<u64> {
        let expression: gimli::Expression<Bytes> = expression.get(&self.frames).ok()?;
        let mut evaluation = expression.evaluation(encoding);
        evaluation.set_max_iterations(EXPRESSION_STEPS_MAX);
        if let Some(start) = start {
            evaluation.set_initial_value(start);
        }
        let mut state = evaluation.evaluate().ok()?;
        loop {
            state = match state {
                EvaluationResult::Complete => break,
                EvaluationResult::RequiresRegister { register, .. } => {
                    evaluation.resume_with_register(Value::Generic(now.get(register)?)).ok()?
                }
                EvaluationResult::RequiresMemory { address, size: 8, space: None, .. } => {
                    evaluation.resume_with_memory(Value::Generic(word(address)?)).ok()?
                }
                _ => return None,
            };
        }
        match evaluation.as_result() {
            [piece] => match piece.location {
                Location::Address { address } => Some(address),
                _ => None,
            },
            _ => None,
        }
    }
}
