//! tokio, current-thread: one task per connection, vectored writes, file reads on its blocking pool (what `tokio::fs`
//! does).

use std::fs::File;
use std::io::IoSlice;
use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::Reads;
use crate::protocol::{Input, Offsets, Output, Request};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap()
}

pub fn serve(listener: TcpListener, file: File) -> ! {
    listener.set_nonblocking(true).unwrap();
    let file = Arc::new(file);
    runtime().block_on(async move {
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            stream.set_nodelay(true).unwrap();
            tokio::spawn(connection(stream, file.clone()));
        }
    })
}

async fn connection(mut stream: TcpStream, file: Arc<File>) {
    let (mut input, mut staging, mut requests) = (Input::default(), vec![0; 256 << 10], Vec::new());
    loop {
        let Ok(count @ 1..) = stream.read(&mut staging).await else { return };
        input.feed(&staging[..count], |request| requests.push(request));
        let mut output = Output::default();
        let replies: Vec<_> = requests.drain(..).map(|request| start(request, &file)).collect();
        for reply in replies {
            output.push(match reply {
                Ok(bytes) => bytes,
                Err(reading) => reading.await.unwrap(),
            });
        }
        while !output.is_empty() {
            let mut slices = Vec::with_capacity(64);
            output.fill(&mut slices);
            let slices: Vec<IoSlice> = slices;
            let Ok(sent) = stream.write_vectored(&slices).await else { return };
            drop(slices);
            output.advance(sent);
        }
    }
}

fn start(request: Request, file: &Arc<File>) -> Result<Bytes, tokio::task::JoinHandle<Bytes>> {
    request.at_once().ok_or_else(|| {
        let file = file.clone();
        tokio::task::spawn_blocking(move || {
            let mut bytes = vec![0; request.len_bytes];
            file.read_exact_at(&mut bytes, request.offset).unwrap();
            Bytes::from(bytes)
        })
    })
}

pub fn reads(file: File, work: Reads) -> u64 {
    let file = Arc::new(file);
    runtime().block_on(async move {
        let tasks: Vec<_> = (0..work.depth)
            .map(|reader| {
                let file = file.clone();
                tokio::spawn(async move {
                    let (mut offsets, mut count) = (Offsets::new(reader), 0);
                    let mut buffer = vec![0; work.len_bytes];
                    while Instant::now() < work.until {
                        let (file, offset) = (file.clone(), offsets.next(work.len_bytes));
                        buffer = tokio::task::spawn_blocking(move || {
                            file.read_exact_at(&mut buffer, offset).unwrap();
                            buffer
                        })
                        .await
                        .unwrap();
                        count += 1;
                    }
                    count
                })
            })
            .collect();
        let mut count = 0;
        for task in tasks {
            count += task.await.unwrap();
        }
        count
    })
}
