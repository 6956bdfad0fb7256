//! The four candidates behind one door.

mod compio;
mod epoll;
mod ours;
mod tokio;
mod uring;

use std::fs::File;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use strongroom_net::FlavourChoice;

/// The last two are what came of it, and only serve: their file reads are those of `epoll`.
pub const FLAVOURS: [&str; 6] = ["tokio", "compio", "io_uring", "epoll", "net/io_uring", "net/epoll"];

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
        "net/io_uring" => ours::serve(listener, file, FlavourChoice::IoUring),
        "net/epoll" => ours::serve(listener, file, FlavourChoice::Epoll),
        other => panic!("no flavour '{other}'"),
    }
}

/// Returns how many reads were done.
pub fn reads(flavour: &str, file: File, work: Reads) -> u64 {
    match flavour {
        "tokio" => tokio::reads(file, work),
        "compio" => compio::reads(file, work),
        "io_uring" => uring::reads(file, work),
        "epoll" | "net/epoll" | "net/io_uring" => epoll::reads(file, work),
        other => panic!("no flavour '{other}'"),
    }
}
