//! Runs a Ceph cluster while standard input is open: `kedge-ceph [OSDS [memory|disk]]`.

#![forbid(unsafe_code)]

use anyhow::{Context, Result, bail};
use kedge_ceph::{Cluster, Layout, Store};
use std::io::Read;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let mut layout = Layout { osds: 1, ..Layout::usual() };
    if let Some(number) = words.first() {
        layout.osds = number.parse().ok().filter(|n| (1..=9).contains(n)).context("1 to 9 OSDs")?;
    }
    match words.get(1).map(String::as_str) {
        None => {}
        Some("memory") => layout.store = Store::Memory,
        Some("disk") => layout.store = Store::Disk,
        Some(other) => bail!("{other}: memory or disk"),
    }
    let missing = kedge_ceph::missing();
    if !missing.is_empty() {
        bail!("{} is missing (apt-get install ceph-mon ceph-osd ceph-common)", missing.join(", "));
    }
    let cluster = Cluster::start(layout)?;
    println!("export CEPH_CONF={}", cluster.conf().display());
    println!("kedge mkfs --size 1G 'rbd:rbd/IMAGE?id=fs&conf={}'", cluster.conf().display());
    println!("The cluster ends with standard input (Ctrl-D).");
    std::io::stdin().read_to_end(&mut Vec::new()).context("wait for the end")?;
    Ok(())
}
