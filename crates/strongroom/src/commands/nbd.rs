//! `strongroom nbd serve`: a volume for programs that speak NBD, until it is told to end.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use strongroom_initiator::front::nbd::{NbdAddress, NbdCertificates, NbdOptions, NbdServer};
use strongroom_initiator::safety::Memory;
use strongroom_initiator::{RemoteDevice, VolumeUrl};

use super::detach::DATA_LOST;
use crate::attachment_process::{FrontEnd, NotEnded, ServingArgs, VolumeUse};
use crate::attachments::AttachmentPlace;
use crate::metrics::attachment::ClientCounter;
use crate::runtime_dir::RuntimeDir;

/// Serve a volume to programs that speak NBD: qemu, libnbd, kernels.
#[derive(Subcommand)]
pub(crate) enum NbdCommand {
    Serve(Box<NbdServeArgs>),
}

/// Serve a volume at a socket, until SIGTERM or `strongroom detach`.
///
/// The exit status is 0 if everything that was written is at the target, and 3 if some of it is not.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    strongroom nbd serve strongroom://storage/vault --key-file ~/vault.key --socket /run/vault.sock\n  \
    qemu-img convert -n -O raw disk.img 'nbd+unix:///vault?socket=/run/vault.sock'\n  \
    strongroom nbd serve strongroom://storage/vault --key-file ~/vault.key --listen 192.0.2.7:10809 --tls-certificates /etc/pki/nbd\n  \
    strongroom detach /run/vault.sock")]
pub(crate) struct NbdServeArgs {
    /// The volume: as for `strongroom attach`.
    url: VolumeUrl,
    /// Listen at this Unix socket, which only this user can use [default: VOLUME.nbd in the directory for attachments].
    #[arg(long, value_name = "PATH", conflicts_with = "listen")]
    socket: Option<PathBuf>,
    /// Listen at this address and TCP port (NBD's is 10809). Any user of this machine can use the volume through an address of the loopback;
    /// others need --tls-certificates.
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Serve only clients that begin TLS and have a certificate. The directory holds ca-cert.pem, server-cert.pem and server-key.pem, and
    /// ca-crl.pem if there are revoked certificates.
    #[arg(long, value_name = "DIR")]
    tls_certificates: Option<PathBuf>,
    /// Connections at once; each may hold up to 32 MiB of memory.
    #[arg(long, value_name = "COUNT", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..))]
    clients_max: u16,
    #[command(flatten)]
    serving: ServingArgs,
}

/// Runs the command.
pub(crate) fn run(command: NbdCommand) -> Result<ExitCode> {
    let NbdCommand::Serve(args) = command;
    let address = args.address()?;
    let certificates = args.tls_certificates.as_deref().map(NbdCertificates::load).transpose()?;
    let volume = VolumeUse {
        url: &args.url,
        purpose: format!("nbd serve, at {address}"),
        is_mounted_here: false,
        memory: Memory::Locked,
        log: None,
        name: None,
    };
    let lost = args.serving.serve(&volume, |device| args.start(device, &address, certificates))?;
    match lost {
        None => Ok(ExitCode::SUCCESS),
        Some(losses) => {
            eprintln!("strongroom: {} is detached, but {losses}", args.url.route());
            Ok(ExitCode::from(DATA_LOST))
        }
    }
}

impl NbdServeArgs {
    fn address(&self) -> Result<NbdAddress> {
        Ok(match (&self.socket, self.listen) {
            (Some(path), _) => NbdAddress::Unix(path.clone()),
            (None, Some(address)) => NbdAddress::Tcp(address),
            (None, None) => NbdAddress::Unix(RuntimeDir::open()?.path_of(&format!("{}.nbd", self.url.file_name()))),
        })
    }

    fn start(
        &self,
        device: Arc<RemoteDevice>,
        address: &NbdAddress,
        certificates: Option<NbdCertificates>,
    ) -> Result<NbdFrontEnd> {
        let mut options = NbdOptions::new(self.url.file_name());
        options.read_only = self.serving.is_read_only(&self.url);
        // One record seals any number of absent blocks; a plain unit may have to be sent zeros.
        options.fast_zero = device.unit().sealed.is_some();
        options.certificates = certificates;
        options.connections_max = self.clients_max.into();
        let server = NbdServer::start(device, address, options).context("cannot serve the volume over NBD")?;
        Ok(NbdFrontEnd(server))
    }
}

/// An NBD server as a front end.
struct NbdFrontEnd(NbdServer);

impl FrontEnd for NbdFrontEnd {
    fn place(&self) -> AttachmentPlace {
        let socket = match self.0.address() {
            NbdAddress::Unix(path) => Some(path.clone()),
            NbdAddress::Tcp(_) => None,
        };
        AttachmentPlace::Nbd { uri: self.0.uri(), socket }
    }

    /// Its socket is for clients to find, not a device.
    fn device(&self) -> Option<PathBuf> {
        None
    }

    fn client_counter(&self) -> Option<ClientCounter> {
        Some(Box::new(self.0.client_counter()))
    }

    fn announce(&self) {
        println!("{}", self.0.uri());
    }

    fn ended_fd(&self) -> BorrowedFd<'_> {
        self.0.ended_fd()
    }

    /// New clients are told the new size; the protocol has no word for those that are connected.
    fn growth_follower(&self) -> impl Fn() + Send + 'static {
        || tracing::info!("clients that connect from now on see the new size")
    }

    /// Nothing is cached here, and every write fails.
    fn drop_caches(&mut self, _why: &str) {}

    fn finish(self) -> Result<(), NotEnded<Self>> {
        self.0.finish().map_err(|error| (None, error.into()))
    }

    fn end_by_force(self) {
        self.0.abandon();
    }
}
