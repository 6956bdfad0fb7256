//! stunnel at both ends of tgt: TLS 1.3 around plain iSCSI, as people secure it who have no IPsec.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use super::serve::{READY_TIMEOUT, Request, Served, free_address};
use super::tgt;
use crate::programs::{program, run};
use crate::{Background, BenchError};

/// The suite that our own volumes use too.
const SUITE: &str = "TLS_AES_256_GCM_SHA384";

/// Starts a tuned tgt and a tunnel to it.
pub(super) fn start(request: &Request<'_>) -> Result<Served, BenchError> {
    let inner = free_address()?;
    let mut served = tgt::start(request, inner, true, &[])?;
    let (certificate, key) = (request.directory.join("stunnel.crt"), request.directory.join("stunnel.key"));
    let mut openssl = program("openssl", &[]);
    openssl
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"])
        .args(["-subj", "/CN=bench", "-keyout"])
        .arg(&key)
        .arg("-out")
        .arg(&certificate);
    run(openssl)?;
    let (outer, entrance) = (free_address()?, free_address()?);
    let (certificate, key) = (certificate.display(), key.display());
    let server = format!("cert = {certificate}\nkey = {key}\n[iscsi]\naccept = {outer}\nconnect = {inner}\n");
    let client = format!(
        "client = yes\nCAfile = {certificate}\nverifyPeer = yes\n[iscsi]\naccept = {entrance}\nconnect = {outer}\n"
    );
    let side = |name: &str, text: &str, address: SocketAddr, cpus: &[usize]| {
        let path = request.directory.join(format!("{name}.conf"));
        write(&path, text)?;
        let mut command = program("stunnel", &[]);
        command.arg(&path);
        let mut tunnel = Background::start(name, command, cpus, request.directory)?;
        tunnel.wait_for_port(address, READY_TIMEOUT)?;
        Ok::<Background, BenchError>(tunnel)
    };
    // In front: stopped before the target.
    served.target.insert(0, side("stunnel-target", &server, outer, request.target_cpus())?);
    served.initiator_side.push(side("stunnel-initiator", &client, entrance, request.initiator_cpus())?);
    served.portal = entrance.to_string();
    Ok(served)
}

fn write(path: &Path, text: &str) -> Result<(), BenchError> {
    let common = format!(
        "foreground = yes\npid =\ndebug = warning\nsocket = l:TCP_NODELAY=1\nsocket = r:TCP_NODELAY=1\n\
         sslVersion = TLSv1.3\nciphersuites = {SUITE}\n{text}"
    );
    fs::write(path, common).map_err(|error| BenchError::file(path, error))
}
