//! What came of it: the runtime of `crates/net`, on io_uring and on epoll, file reads inline. It must keep the spike's
//! promise.

use std::collections::HashMap;
use std::fs::File;
use std::net::TcpListener;
use std::os::unix::fs::FileExt;

use bytes::Bytes;
use strongroom_block::Buffer;
use strongroom_net::{DetachedStream, Event, FlavourChoice, Runtime, RuntimeOptions};

use crate::protocol::Input;

pub fn serve(listener: TcpListener, file: File, flavour: FlavourChoice) -> ! {
    let mut runtime = Runtime::new(RuntimeOptions { flavour, ..RuntimeOptions::default() }).unwrap();
    // The bench binds the port; its connections are handed over as they come.
    let (waker, (sender, receiver)) = (runtime.waker(), std::sync::mpsc::channel());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            sender.send(DetachedStream::from_std(stream.unwrap()).unwrap()).unwrap();
            waker.wake();
        }
    });
    let mut inputs: HashMap<_, Input> = HashMap::new();
    let mut replies: Vec<Buffer> = Vec::new();
    loop {
        runtime.poll(None).unwrap();
        while let Some(event) = runtime.next_event() {
            match event {
                Event::Received { stream, bytes } => {
                    inputs.entry(stream).or_default().feed(bytes, |request| {
                        let bytes = request.at_once().unwrap_or_else(|| {
                            let mut bytes = vec![0; request.len_bytes];
                            file.read_exact_at(&mut bytes, request.offset).unwrap();
                            Bytes::from(bytes)
                        });
                        replies.push(Buffer::from(bytes));
                    });
                    let _ = runtime.send(stream, &mut replies);
                }
                Event::PeerFinished { stream } => {
                    inputs.remove(&stream);
                    runtime.close(stream);
                }
                Event::Closed { stream, .. } => drop(inputs.remove(&stream)),
                Event::Woken => {
                    while let Ok(stream) = receiver.try_recv() {
                        runtime.attach(stream).unwrap();
                    }
                }
                Event::Accepted { .. } | Event::Connected { .. } | Event::SendLow { .. } => {}
            }
        }
    }
}
