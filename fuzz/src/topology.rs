//! Files that describe hosts and clusters.

use ringway_topology::{Document, Place, Topology};

/// A file's text: what is taken is written and read as the same again, and all that can be asked of it has an answer; what is
/// not has a reason.
pub fn file(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let document = match Document::parse(text) {
        Ok(document) => document,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let again = Document::parse(&document.to_json());
    assert_eq!(again.ok().as_ref(), Some(&document), "{text}");
    match document {
        Document::Host(host) => ask(&host),
        Document::Cluster(cluster) => {
            let last = u32::try_from(cluster.nodes() - 1).unwrap_or(u32::MAX);
            assert!(cluster.host(last).is_some());
            assert!(cluster.nearest_group(0, last).is_none_or(|group| group < cluster.groups.len()));
            cluster.hosts.iter().filter_map(|hosts| hosts.topology.as_ref()).for_each(ask);
        }
    }
}

fn ask(host: &Topology) {
    let gpus = (0..host.gpus.len()).map(Place::Gpu);
    let nics = (0..host.nics.len()).map(Place::Nic);
    let places: Vec<Place> = gpus.chain(nics).chain((0..host.numa.len()).map(Place::Numa)).collect();
    for from in &places {
        for to in &places {
            let path = host.path(*from, *to);
            assert!(path.is_some() && path == host.path(*to, *from), "the way back is the same");
        }
        if let Some(nic) = host.nearest_nic(*from) {
            assert!(host.nics.get(nic).is_some_and(|nic| !nic.is_software));
        }
    }
}

/// A host, clusters, and files that are refused.
#[must_use]
pub fn file_samples() -> Vec<Vec<u8>> {
    let numa = r#""numa":[{"id":0,"memory_bytes":1,"cpus":"0-1","distances":[10]}]"#;
    let packages = r#""packages":[{"id":0,"cores":["0","1"]}]"#;
    let root = r#""pci":{"address":"0000:02:00.0","parent":"0000:00:01.0"}"#;
    let bridges = r#""bridges":[{"address":"0000:00:01.0","parent":"pci0000:00"}]"#;
    let nics = format!(r#""nics":[{{"interface":"a","state":"up","numa_node":0,{root}}}]"#);
    let gpus = r#""gpus":[{"pci":{"address":"0000:03:00.0","parent":"pci0000:00"},"nvlinks":[{"to":"switch","links":2}]}]"#;
    let caches = r#""caches":[{"level":1,"kind":"data","bytes":9,"each":["0","1"]}]"#;
    let host = format!(r#"{{"name":"h",{packages},{numa},{caches},{bridges},{nics},{gpus}}}"#);
    let of = |body: &str| format!(r#"{{"format":"ringway-topology","version":1,{body}}}"#);
    let cluster = |groups: &str| {
        of(&format!(r#""cluster":{{"name":"c","hosts":[{{"name":"h","count":4}}],"groups":[{groups}]}}"#))
    };
    let texts = [
        of(&format!(r#""host":{host}"#)),
        of(&format!(r#""cluster":{{"name":"c","hosts":[{{"name":"h","topology":{host}}}]}}"#)),
        cluster(r#"{"name":"a","nodes":"0-1"},{"name":"b","nodes":"0-2","uplink_mbps":1}"#),
        cluster(r#"{"name":"a","nodes":"0-1"},{"name":"b","nodes":"1-2"}"#),
        cluster(r#"{"name":"a","nodes":"0-4294967295"}"#),
        of(&format!(r#""host":{}"#, host.replace("\"0000:02", "\"0000:99:1f.7"))),
        of(&format!(
            r#""host":{}"#,
            host.replace("\"parent\":\"pci0000:00\"", "\"parent\":\"0000:00:01.0\"")
        )),
        of(""),
        r#"{"format":"ringway-topology","version":2}"#.to_owned(),
        "[[[[".to_owned(),
        String::new(),
    ];
    texts.into_iter().map(String::into_bytes).collect()
}
