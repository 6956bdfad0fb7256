//! Which runtime should carry a storage target? The same small server four times, the same client for all.
//!
//! A request is 48 bytes (an iSCSI header's size), a reply 4 KiB or 64 KiB from memory or from a page-cached file. The
//! server runs alone in a process on one processor, the client on another. Reported: operations per second, the server's
//! CPU time per operation (user and system, getrusage), its system calls per operation (counted by the kernel's
//! `raw_syscalls:sys_enter` tracepoint through `perf stat`, in separate runs). Absent: anything that would be a product.

mod bench;
mod client;
mod protocol;
mod servers;

use std::net::TcpListener;

fn usage() -> ! {
    eprintln!(
        "usage: runtime-spike bench [--seconds S] [--repeats N] [--only WORKLOAD-PART] [--product PROGRAM]\n\
         \x20      runtime-spike serve FLAVOUR CPU FILE      (used by bench; prints its port)\n\
         \x20      runtime-spike reads FLAVOUR CPU FILE SIZE DEPTH SECONDS   (used by bench)\n\
         flavours: {}",
        servers::FLAVOURS.join(" ")
    );
    std::process::exit(2);
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match &args[..] {
        ["serve", flavour, cpu, file] => {
            protocol::pin(cpu.parse().expect("a processor number"));
            let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
            println!("{}", listener.local_addr().expect("bound").port());
            servers::serve(flavour, listener, std::fs::File::open(file).expect("the file to read"));
        }
        ["reads", flavour, cpu, file, size, depth, seconds] => {
            protocol::pin(cpu.parse().expect("a processor number"));
            let file = std::fs::File::open(file).expect("the file to read");
            let seconds: f64 = seconds.parse().expect("seconds");
            let work = servers::Reads::new(size.parse().expect("bytes"), depth.parse().expect("a depth"), seconds);
            let before = protocol::cpu_microseconds();
            let started = std::time::Instant::now();
            let count = servers::reads(flavour, file, work);
            let cpu = protocol::cpu_microseconds() - before;
            println!("{count} {} {cpu}", started.elapsed().as_micros());
        }
        [] => bench::run(bench::Options::parse(&[]).expect("no options")),
        ["bench", options @ ..] => bench::run(bench::Options::parse(options).unwrap_or_else(|| usage())),
        _ => usage(),
    }
}
