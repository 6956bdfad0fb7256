//! A network path of which both parts can be disturbed: the connection of the login, and the packets.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::net;
use strongroom_initiator::VolumeUrl;

use crate::support::Host;

/// Whether a packet goes on, by its number and length.
type Passes = fn(u64, usize) -> bool;

struct PathShared {
    target: SocketAddr,
    passes: Mutex<Passes>,
    open: Mutex<Vec<TcpStream>>,
    /// Packets that were seen on their way to the target.
    to_target: Mutex<Vec<Vec<u8>>>,
    packets: AtomicU64,
    /// Bytes of connections until one is changed; 0: none is.
    bytes_to_damage: AtomicU64,
    is_over: AtomicBool,
}

/// Passes on what comes to an address of its own, as if it came from there.
pub(super) struct Path {
    address: SocketAddr,
    shared: Arc<PathShared>,
}

impl Path {
    pub(super) fn before(host: &Host) -> Path {
        static NEXT: AtomicU8 = AtomicU8::new(1);
        let ip = IpAddr::from([127, 0, 77, NEXT.fetch_add(1, Ordering::Relaxed)]);
        let listener = TcpListener::bind((ip, 0)).unwrap();
        let shared = Arc::new(PathShared {
            target: host.address,
            passes: Mutex::new(|_, _| true),
            open: Mutex::default(),
            to_target: Mutex::default(),
            packets: AtomicU64::new(0),
            bytes_to_damage: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        });
        let path = Path { address: listener.local_addr().unwrap(), shared: shared.clone() };
        // The answer to the login names the target's port.
        let port = UdpSocket::bind((ip, host.address.port())).unwrap();
        std::thread::spawn(move || {
            for initiator in listener.incoming() {
                if shared.is_over.load(Ordering::Relaxed) {
                    return;
                }
                let initiator = initiator.unwrap();
                // The target takes packets from the host only that the connection comes from.
                let Ok(target) = connect_from(ip, shared.target) else { continue };
                for stream in [&initiator, &target] {
                    stream.set_nodelay(true).unwrap();
                }
                shared.open.lock().unwrap().extend([initiator.try_clone().unwrap(), target.try_clone().unwrap()]);
                for (from, to) in [(initiator.try_clone().unwrap(), target.try_clone().unwrap()), (target, initiator)] {
                    let shared = shared.clone();
                    std::thread::spawn(move || pass_stream(from, to, &shared));
                }
            }
        });
        let shared = path.shared.clone();
        std::thread::spawn(move || pass_packets(&port, ip, &shared));
        path
    }

    pub(super) fn url(&self, volume: &str) -> VolumeUrl {
        format!("ecl://{}/{volume}", self.address).parse().unwrap()
    }

    /// The same without datagrams.
    pub(super) fn tcp_url(&self, volume: &str) -> VolumeUrl {
        format!("ecl+tcp://{}/{volume}", self.address).parse().unwrap()
    }

    /// Changes one byte of a connection, after `bytes` that pass.
    pub(super) fn damage_after(&self, bytes: u64) {
        self.shared.bytes_to_damage.store(bytes, Ordering::Relaxed);
    }

    /// Whether that has happened.
    pub(super) fn has_damaged(&self) -> bool {
        self.shared.bytes_to_damage.load(Ordering::Relaxed) == 0
    }

    /// Which packets pass from now on.
    pub(super) fn set_udp(&self, passes: Passes) {
        *self.shared.passes.lock().unwrap() = passes;
    }

    /// Cuts every connection.
    pub(super) fn cut(&self) {
        for stream in self.shared.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// The packets of initiators that passed lately.
    pub(super) fn recorded(&self) -> Vec<Vec<u8>> {
        self.shared.to_target.lock().unwrap().clone()
    }
}

impl Drop for Path {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        self.cut();
        let _ = TcpStream::connect(self.address);
    }
}

fn connect_from(ip: IpAddr, target: SocketAddr) -> std::io::Result<TcpStream> {
    let socket: OwnedFd = net::socket(net::AddressFamily::INET, net::SocketType::STREAM, None)?;
    net::bind(&socket, &SocketAddr::new(ip, 0))?;
    net::connect(&socket, &target)?;
    Ok(TcpStream::from(socket))
}

fn pass_stream(mut from: TcpStream, mut to: TcpStream, shared: &PathShared) {
    let mut buffer = vec![0; 65536];
    while let Ok(len) = from.read(&mut buffer)
        && len > 0
    {
        let left = shared.bytes_to_damage.load(Ordering::Relaxed);
        if left > 0 {
            shared.bytes_to_damage.store(left.saturating_sub(len as u64), Ordering::Relaxed);
            if left <= len as u64 {
                buffer[left as usize - 1] ^= 0x20;
            }
        }
        if to.write_all(&buffer[..len]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// Each initiator has a socket of ours towards the target, by which its answers come back.
fn pass_packets(port: &UdpSocket, ip: IpAddr, shared: &Arc<PathShared>) {
    const RECORDED_MAX: usize = 500;
    port.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let mut ways: Vec<(SocketAddr, UdpSocket)> = Vec::new();
    let mut buffer = vec![0; 65536];
    while !shared.is_over.load(Ordering::Relaxed) {
        let Ok((len, from)) = port.recv_from(&mut buffer) else { continue };
        let known = ways.iter().position(|(initiator, _)| *initiator == from);
        let way = known.unwrap_or_else(|| {
            let way = UdpSocket::bind((ip, 0)).unwrap();
            way.connect(shared.target).unwrap();
            way.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            let (back, port, shared) = (way.try_clone().unwrap(), port.try_clone().unwrap(), shared.clone());
            std::thread::spawn(move || pass_back(&back, &port, from, &shared));
            ways.push((from, way));
            ways.len() - 1
        });
        if shared.lets_pass(len) {
            let mut recorded = shared.to_target.lock().unwrap();
            if recorded.len() < RECORDED_MAX {
                recorded.push(buffer[..len].to_vec());
            }
            let _ = ways[way].1.send(&buffer[..len]);
        }
    }
}

fn pass_back(way: &UdpSocket, port: &UdpSocket, initiator: SocketAddr, shared: &PathShared) {
    let mut buffer = vec![0; 65536];
    while !shared.is_over.load(Ordering::Relaxed) {
        let Ok(len) = way.recv(&mut buffer) else { continue };
        if shared.lets_pass(len) {
            let _ = port.send_to(&buffer[..len], initiator);
        }
    }
}

impl PathShared {
    fn lets_pass(&self, len: usize) -> bool {
        let number = self.packets.fetch_add(1, Ordering::Relaxed) + 1;
        let passes = *self.passes.lock().unwrap();
        passes(number, len)
    }
}
