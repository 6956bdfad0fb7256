//! User-space WireGuard (wireguard-go) between two network namespaces, in front of tgt.
//!
//! The program can be another one than Debian's: the environment variable `WIREGUARD_GO` names it. Versions from 2023 on
//! know segmentation offload and are several times faster.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::serve::{READY_TIMEOUT, Request, Served};
use super::tgt;
use crate::namespaces::{self, Namespaces, inside, ip};
use crate::programs::{program, run};
use crate::{Background, BenchError};

/// Addresses inside the tunnel.
const INITIATOR: Ipv4Addr = Ipv4Addr::new(10, 214, 0, 1);
const TARGET: Ipv4Addr = Ipv4Addr::new(10, 214, 0, 2);
/// Jumbo frames, so that the tunnel's packets can be large.
const CABLE_MTU: u32 = 9000;
/// The cable's 9000 less WireGuard's 80.
const TUNNEL_MTU: &str = "8920";
const PORT: u16 = 51820;

/// What runs.
pub(super) fn program_name() -> String {
    std::env::var("WIREGUARD_GO").unwrap_or_else(|_| "wireguard-go".into())
}

/// Whether a tunnel can be made here.
pub(super) fn check() -> Result<(), BenchError> {
    if !rustix::process::geteuid().is_root() {
        return Err(BenchError::Asked("WireGuard + tgt: network namespaces take root".into()));
    }
    if !Path::new("/dev/net/tun").exists() {
        return Err(BenchError::Asked(
            "WireGuard + tgt: there is no /dev/net/tun; load the kernel's tun module".into(),
        ));
    }
    Ok(())
}

/// One end of the tunnel.
struct Side {
    namespace: String,
    inner: Ipv4Addr,
    outer: Ipv4Addr,
    private: PathBuf,
    public: String,
}

/// Starts a tunnel, and a tuned tgt at its end.
pub(super) fn start(request: &Request<'_>) -> Result<Served, BenchError> {
    let namespaces = Namespaces::new(CABLE_MTU)?;
    let target = side(request, namespaces.target(), TARGET, namespaces::TARGET)?;
    let initiator = side(request, namespaces.initiator(), INITIATOR, namespaces::INITIATOR)?;
    let at_target = tunnel(request, &target, &initiator, request.target_cpus())?;
    let at_initiator = tunnel(request, &initiator, &target, request.initiator_cpus())?;
    let address = SocketAddr::from((TARGET, super::serve::ISCSI_PORT));
    let mut served = tgt::start(request, address, true, &inside(&target.namespace))?;
    served.target.push(at_target);
    served.initiator_side.push(at_initiator);
    served.prefix = inside(&initiator.namespace);
    served.namespaces = Some(namespaces);
    Ok(served)
}

fn side(request: &Request<'_>, namespace: String, inner: Ipv4Addr, outer: Ipv4Addr) -> Result<Side, BenchError> {
    let mut generate = program("wg", &[]);
    generate.arg("genkey");
    let key = run(generate)?;
    let private = request.directory.join(format!("{namespace}.key"));
    fs::write(&private, &key)
        .and_then(|()| fs::set_permissions(&private, fs::Permissions::from_mode(0o600)))
        .map_err(|error| BenchError::file(&private, error))?;
    let mut derive = program("sh", &[]);
    derive.args(["-c", "wg pubkey <\"$1\"", "sh"]).arg(&private);
    let public = run(derive)?.trim().to_owned();
    Ok(Side { namespace, inner, outer, private, public })
}

/// One end's process; its interface has the namespace's name and a `w`.
fn tunnel(request: &Request<'_>, here: &Side, there: &Side, cpus: &[usize]) -> Result<Background, BenchError> {
    let interface = format!("{}w", here.namespace);
    let mut command = program(&program_name(), &inside(&here.namespace));
    command.args(["-f", &interface]).env("LOG_LEVEL", "error");
    let mut process = Background::start(&format!("wireguard-{interface}"), command, cpus, request.directory)?;
    let control = PathBuf::from(format!("/var/run/wireguard/{interface}.sock"));
    process.wait_until(READY_TIMEOUT, |_| control.exists().then_some(()))?;
    let mut set = program("wg", &inside(&here.namespace));
    set.args(["set", &interface, "listen-port", &PORT.to_string(), "private-key"])
        .arg(&here.private)
        .args(["peer", &there.public, "allowed-ips", &format!("{}/32", there.inner)])
        .args(["endpoint", &format!("{}:{PORT}", there.outer)]);
    run(set).map_err(|error| process.problem(&error.to_string()))?;
    ip(&["-n", &here.namespace, "address", "add", &format!("{}/24", here.inner), "dev", &interface])?;
    ip(&["-n", &here.namespace, "link", "set", &interface, "mtu", TUNNEL_MTU, "up"])?;
    Ok(process)
}
