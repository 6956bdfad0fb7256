//! What the link alone carries: the ceiling of everything that is measured over it.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use crate::{End, Lab, LabError};

/// Bytes of one write.
const CHUNK_BYTES: usize = 256 << 10;

/// How long an end waits for the other before it gives up.
const PATIENCE: Duration = Duration::from_secs(10);

/// What one TCP connection from near to far carried.
#[derive(Debug, Clone)]
pub struct Stream {
    /// Payload that arrived in each second, bytes.
    pub bytes_by_second: Vec<u64>,
}

impl Stream {
    /// Payload bits a second after the first `settling` seconds; 0 without any.
    pub fn bits_per_s(&self, settling: usize) -> f64 {
        let settled = self.bytes_by_second.get(settling..).unwrap_or_default();
        settled.iter().sum::<u64>() as f64 * 8.0 / settled.len().max(1) as f64
    }
}

impl Lab {
    /// Sends over one TCP connection from near to far for `seconds` whole seconds.
    ///
    /// # Errors
    /// If the ends cannot be reached, or the connection fails.
    pub fn measure_stream(&self, seconds: usize) -> Result<Stream, LabError> {
        let failed = |error| LabError::setup("measure a TCP connection", error);
        let address = SocketAddr::from((End::Far.address(), 5001));
        let listener = self.at(End::Far, move || TcpListener::bind(address))?;
        let listener = join(listener).map_err(failed)?;
        let sink = self.at(End::Far, move || sink(&listener, seconds))?;
        let source = self.at(End::Near, move || source(address))?;
        let stream = join(sink).map_err(failed)?;
        // It ends when the other end has gone.
        let _ = source.join();
        Ok(stream)
    }

    /// Round trips of `count` small datagrams, one after the other; those that were lost are left out.
    ///
    /// # Errors
    /// If the ends cannot be reached.
    pub fn measure_round_trips(&self, count: usize) -> Result<Vec<Duration>, LabError> {
        let failed = |error| LabError::setup("measure round trips", error);
        let address = SocketAddr::from((End::Far.address(), 5002));
        let echo = join(self.at(End::Far, move || UdpSocket::bind(address))?).map_err(failed)?;
        echo.set_read_timeout(Some(Duration::from_secs(1))).map_err(failed)?;
        let echoing = self.at(End::Far, move || {
            let mut buffer = [0; 64];
            while let Ok((size, from)) = echo.recv_from(&mut buffer) {
                let _ = echo.send_to(&buffer[..size], from);
            }
        })?;
        let asking = self.at(End::Near, move || {
            let socket = UdpSocket::bind((End::Near.address(), 0))?;
            socket.connect(address)?;
            socket.set_read_timeout(Some(Duration::from_millis(900)))?;
            let mut trips = Vec::new();
            for number in 0..count as u64 {
                let begun = Instant::now();
                socket.send(&number.to_be_bytes())?;
                let mut answer = [0; 8];
                // Late doubles of earlier ones are not ours.
                while socket.recv(&mut answer).is_ok() {
                    if answer == number.to_be_bytes() {
                        trips.push(begun.elapsed());
                        break;
                    }
                }
            }
            Ok(trips)
        })?;
        let trips = join(asking).map_err(failed)?;
        let _ = echoing.join();
        Ok(trips)
    }
}

fn join<T>(thread: std::thread::JoinHandle<io::Result<T>>) -> io::Result<T> {
    thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
}

fn sink(listener: &TcpListener, seconds: usize) -> io::Result<Stream> {
    let (mut connection, _) = listener.accept()?;
    connection.set_read_timeout(Some(PATIENCE))?;
    let begun = Instant::now();
    let mut bytes_by_second = vec![0; seconds];
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        let size = connection.read(&mut buffer)?;
        let second = begun.elapsed().as_secs() as usize;
        if size == 0 || second >= seconds {
            return Ok(Stream { bytes_by_second });
        }
        bytes_by_second[second] += size as u64;
    }
}

fn source(address: SocketAddr) -> io::Result<()> {
    let mut connection = TcpStream::connect_timeout(&address, PATIENCE)?;
    connection.set_write_timeout(Some(PATIENCE))?;
    let chunk = vec![0x5a; CHUNK_BYTES];
    loop {
        connection.write_all(&chunk)?;
    }
}
