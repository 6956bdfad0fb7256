//! The four candidates behind one door.

mod compio;
mod epoll;
mod tokio;
mod uring;

use std::fs::File;
use std::net::TcpListener;
use std::time::{Duration, Instant};

pub const FLAVOURS: [&str; 4] = ["tokio", "compio", "io_uring", "epoll"];

/// Reads from the file alone, no network: `depth` at a time until the time is up.
#[derive(Clone, Copy)]
pub struct Reads {
    pub len_bytes: usize,
    pub depth: usize,
    pub until: Instant,
}

impl Reads {
    pub fn new(len_bytes: usize, depth: usize, seconds: f64) -> Reads {
        Reads { len_bytes, depth, until: Instant::now() + Duration::from_secs_f64(seconds) }
    }
}

pub fn serve(flavour: &str, listener: TcpListener, file: File) -> ! {
    match flavour {
        "tokio" => tokio::serve(listener, file),
        "compio" => compio::serve(listener, file),
        "io_uring" => uring::serve(listener, file),
        "epoll" => epoll::serve(listener, file),
        other => panic!("no flavour '{other}'"),
    }
}

/// Returns how many reads were done.
pub fn reads(flavour: &str, file: File, work: Reads) -> u64 {
    match flavour {
        "tokio" => tokio::reads(file, work),
        "compio" => compio::reads(file, work),
        "io_uring" => uring::reads(file, work),
        "epoll" => epoll::reads(file, work),
        other => panic!("no flavour '{other}'"),
    }
}
