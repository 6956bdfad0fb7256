//! Proves that where io_uring is forbidden, as in most containers, a runtime comes up on epoll by itself, and that asking
//! for io_uring by name is then an error that says what to do.

#![allow(unsafe_code)] // Installs a seccomp filter in a thread of the test.

use super::*;

/// Forbids io_uring_setup(2) in the calling thread, for good.
fn forbid_io_uring() {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let setup = libc::SYS_io_uring_setup as u32;
    let mut filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0), // seccomp_data.nr
        libc::sock_filter { jt: 0, jf: 1, ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, setup) },
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: plain numbers, and a program that outlives the call; the kernel copies it.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}

#[test]
fn falls_back_to_epoll_and_works() {
    std::thread::spawn(|| {
        forbid_io_uring();
        let options = RuntimeOptions { flavour: FlavourChoice::IoUring, ..RuntimeOptions::default() };
        let error = Runtime::new(options).unwrap_err();
        assert!(matches!(error, NetError::IoUringRefused { .. }), "{error}");
        assert!(error.to_string().contains("seccomp"), "{error}");

        let mut bench = Bench::new(FlavourChoice::Auto);
        assert_eq!(bench.runtime.flavour(), Flavour::Epoll);
        let address = bench.listen();
        let caller = bench.runtime.connect(address).unwrap();
        let callee = bench.accepted();
        let _ = bench.send(caller, b"all the same");
        bench.until(|bench| bench.bytes_of(callee) == b"all the same");
    })
    .join()
    .unwrap();
}

#[test]
fn flavours_are_what_was_asked_for() {
    for flavour in [FlavourChoice::Auto, FlavourChoice::Epoll, FlavourChoice::IoUring] {
        let Ok(runtime) = Runtime::new(RuntimeOptions { flavour, ..RuntimeOptions::default() }) else {
            eprintln!("skipped: no io_uring here");
            continue;
        };
        match flavour {
            FlavourChoice::Epoll => assert_eq!(runtime.flavour(), Flavour::Epoll),
            FlavourChoice::IoUring => assert_eq!(runtime.flavour(), Flavour::IoUring),
            FlavourChoice::Auto => {}
        }
    }
}
