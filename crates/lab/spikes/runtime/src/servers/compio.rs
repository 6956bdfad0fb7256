//! compio: completion-based futures on io_uring, one thread; owned buffers go in and come back.

use std::fs::File;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::time::Instant;

use bytes::Bytes;
use compio::BufResult;
use compio::io::{AsyncRead, AsyncReadAtExt, AsyncWriteExt};
use compio::net::TcpStream;
use futures_util::future::join_all;

use super::Reads;
use crate::protocol::{Input, Offsets, Request, SLICES_MAX};

pub fn serve(listener: TcpListener, file: File) -> ! {
    let runtime = compio::runtime::Runtime::new().unwrap();
    runtime.block_on(async move {
        let file = reopen(&file).await;
        let listener = compio::net::TcpListener::from_std(listener).unwrap();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            stream.set_nodelay(true).unwrap();
            compio::runtime::spawn(connection(stream, file.clone())).detach();
        }
    })
}

async fn connection(mut stream: TcpStream, file: compio::fs::File) {
    let (mut input, mut staging, mut requests) = (Input::default(), Vec::with_capacity(256 << 10), Vec::new());
    loop {
        staging.clear();
        let BufResult(outcome, returned) = stream.read(staging).await;
        staging = returned;
        let Ok(1..) = outcome else { return };
        input.feed(&staging, |request| requests.push(request));
        let replies: Vec<Bytes> = if requests.iter().all(|request| request.at_once().is_some()) {
            requests.drain(..).filter_map(Request::at_once).collect()
        } else {
            join_all(requests.drain(..).map(|request| reply(request, &file))).await
        };
        let mut replies = replies.into_iter().peekable();
        while replies.peek().is_some() {
            let batch: Vec<Bytes> = replies.by_ref().take(SLICES_MAX).collect();
            let BufResult(outcome, _) = stream.write_vectored_all(batch).await;
            if outcome.is_err() {
                return;
            }
        }
    }
}

/// compio opens files itself.
async fn reopen(file: &File) -> compio::fs::File {
    compio::fs::File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).await.unwrap()
}

async fn reply(request: Request, file: &compio::fs::File) -> Bytes {
    if let Some(bytes) = request.at_once() {
        return bytes;
    }
    let BufResult(outcome, bytes) = file.read_exact_at(Vec::with_capacity(request.len_bytes), request.offset).await;
    outcome.unwrap();
    Bytes::from(bytes)
}

pub fn reads(file: File, work: Reads) -> u64 {
    let runtime = compio::runtime::Runtime::new().unwrap();
    runtime.block_on(async move {
        let file = reopen(&file).await;
        let reading = (0..work.depth).map(|reader| {
            let file = file.clone();
            compio::runtime::spawn(async move {
                let (mut offsets, mut count) = (Offsets::new(reader), 0u64);
                let mut buffer: Vec<u8> = Vec::with_capacity(work.len_bytes);
                while Instant::now() < work.until {
                    buffer.clear();
                    let BufResult(outcome, returned) = file.read_exact_at(buffer, offsets.next(work.len_bytes)).await;
                    outcome.unwrap();
                    buffer = returned;
                    count += 1;
                }
                count
            })
        });
        join_all(reading.collect::<Vec<_>>()).await.into_iter().map(|count| count.unwrap()).sum()
    })
}
