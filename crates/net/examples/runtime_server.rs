//! The runtime under the spike's workload: the same 48-byte requests and replies as the servers in `crates/lab/spikes/runtime`, so
//! that its bench can hold the product against what was promised.
//!
//! `runtime_server epoll|io_uring CPU FILE` prints its port and serves until killed.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use bytes::Bytes;
use strongroom_block::Buffer;
use strongroom_net::{Event, FlavourChoice, Listener, NetError, Runtime, RuntimeOptions, affinity};

const REQUEST_BYTES: usize = 48;
static MEMORY: [u8; 64 << 10] = [7; 64 << 10];

fn main() -> Result<(), NetError> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [flavour, cpu, file] = &args[..] else {
        eprintln!("usage: runtime_server epoll|io_uring CPU FILE");
        std::process::exit(2);
    };
    let flavour = if flavour == "epoll" { FlavourChoice::Epoll } else { FlavourChoice::IoUring };
    affinity::pin_current_thread(cpu.parse().expect("a processor's number"))?;
    let file = File::open(file).expect("the file to read from");
    let mut runtime = Runtime::new(RuntimeOptions { flavour, ..RuntimeOptions::default() })?;
    let listener = Listener::bind("127.0.0.1:0".parse().expect("an address"))?;
    println!("{}", listener.local_address().port());
    runtime.listen(listener)?;
    let mut unfinished: HashMap<_, Vec<u8>> = HashMap::new();
    let mut replies: Vec<Buffer> = Vec::new();
    loop {
        runtime.poll(None)?;
        while let Some(event) = runtime.next_event() {
            match event {
                Event::Received { stream, bytes } => {
                    let rest = unfinished.entry(stream).or_default();
                    serve(rest, bytes, &file, &mut replies);
                    let _ = runtime.send(stream, &mut replies);
                }
                Event::PeerFinished { stream } => {
                    unfinished.remove(&stream);
                    runtime.close(stream);
                }
                Event::Closed { stream, .. } => drop(unfinished.remove(&stream)),
                Event::Accepted { .. }
                | Event::Connected { .. }
                | Event::SendLow { .. }
                | Event::DatagramsReady { .. }
                | Event::Woken => {}
            }
        }
    }
}

/// Answers every whole request in `bytes`; `rest` keeps the piece of one at the end.
fn serve(rest: &mut Vec<u8>, mut bytes: &[u8], file: &File, replies: &mut Vec<Buffer>) {
    if !rest.is_empty() {
        let count = (REQUEST_BYTES - rest.len()).min(bytes.len());
        rest.extend_from_slice(&bytes[..count]);
        bytes = &bytes[count..];
        if rest.len() < REQUEST_BYTES {
            return;
        }
        replies.push(reply(rest, file));
        rest.clear();
    }
    let mut whole = bytes.chunks_exact(REQUEST_BYTES);
    replies.extend(whole.by_ref().map(|request| reply(request, file)));
    rest.extend_from_slice(whole.remainder());
}

fn reply(request: &[u8], file: &File) -> Buffer {
    let len_bytes = u32::from_be_bytes(request[4..8].try_into().expect("4 bytes")) as usize;
    let offset = u64::from_be_bytes(request[8..16].try_into().expect("8 bytes"));
    Buffer::from(match request[0] {
        0 => Bytes::from_static(&MEMORY[..len_bytes]),
        1 => {
            let mut bytes = vec![0; len_bytes];
            file.read_exact_at(&mut bytes, offset).expect("inside the file");
            Bytes::from(bytes)
        }
        _ => Bytes::copy_from_slice(&cpu_microseconds().to_be_bytes()),
    })
}

/// Time this process (one thread) has run, user and system.
fn cpu_microseconds() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    stat.split_whitespace().next().and_then(|nanoseconds| nanoseconds.parse::<u64>().ok()).unwrap_or(0) / 1000
}
