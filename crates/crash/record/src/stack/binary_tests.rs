#![allow(clippy::unwrap_used)]

use super::*;

/// The call at the end of `code`, which ends at address 0x1000.
fn call(code: &[u8]) -> Option<Call> {
    let mut bytes = [0x90; CALL_MAX];
    bytes[CALL_MAX - code.len()..].copy_from_slice(code);
    call_at_end(bytes, 0x1000)
}

#[test]
fn instructions_that_call_are_known() {
    assert_eq!(call(&[0xe8, 0x10, 0, 0, 0]), Some(Call::To(0x1010)));
    assert_eq!(call(&[0xe8, 0xfb, 0xff, 0xff, 0xff]), Some(Call::To(0xffb)));
    // call *0x10(%rip)
    assert_eq!(call(&[0xff, 0x15, 0x10, 0, 0, 0]), Some(Call::By(0x1010)));
    let indirect: [&[u8]; 10] = [
        &[0xff, 0xd0],                   // call *%rax
        &[0x41, 0xff, 0xd4],             // call *%r12
        &[0xff, 0x10],                   // call *(%rax)
        &[0xff, 0x14, 0x24],             // call *(%rsp)
        &[0xff, 0x50, 0x08],             // call *8(%rax)
        &[0xff, 0x54, 0x24, 0x08],       // call *8(%rsp)
        &[0xff, 0x90, 1, 2, 3, 4],       // call *0x4030201(%rax)
        &[0xff, 0x94, 0x24, 1, 2, 3, 4], // call *0x4030201(%rsp)
        &[0xff, 0x14, 0xc5, 1, 2, 3, 4], // call *0x4030201(,%rax,8)
        &[0x41, 0xff, 0x55, 0x10],       // call *16(%r13)
    ];
    for code in indirect {
        assert_eq!(call(code), Some(Call::Indirect), "{code:x?}");
    }
    let others: [&[u8]; 6] = [
        &[0xff, 0xe0],          // jmp *%rax
        &[0xe9, 0x10, 0, 0, 0], // jmp
        &[0x48, 0x89, 0xe5],    // mov %rsp,%rbp
        &[0xff, 0x15, 1, 2, 3], // the middle of a call
        &[0xe8, 0x10, 0, 0],
        &[0xc3],
    ];
    for code in others {
        assert_eq!(call(code), None, "{code:x?}");
    }
}

#[test]
fn what_is_no_program_is_refused() {
    for bytes in [&b""[..], b"#!/bin/sh\n", &[0x7f, b'E', b'L', b'F'], &[0x7f; 4096]] {
        assert!(Binary::parse(bytes).is_err());
    }
    // A prefix or part of a program must give an error or a partial result, and no panic.
    let whole = std::fs::read("/proc/self/exe").unwrap();
    for part in (0..20).map(|n| &whole[..whole.len() / 20 * n]) {
        let _either = Binary::parse(part);
    }
}
