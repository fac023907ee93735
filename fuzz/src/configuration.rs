//! The daemon's configuration file.

use ringway_service::Settings;

/// A file's text: settings that are read print, and read as the same settings again; checking them gives a
/// configuration or a reason that names the setting.
pub fn file(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(settings) = toml::from_str::<Settings>(text) else { return };
    assert_eq!(toml::from_str(&settings.to_toml()).as_ref(), Ok(&settings), "{text}");
    // No input shall make this process open files.
    let settings = Settings { cluster_key_file: None, ..settings };
    match settings.clone().resolve() {
        Ok(config) => assert!(config.socket.is_absolute()),
        Err(error) => assert!(error.to_string().contains("setting `"), "{error}"),
    }
    let complete = settings.with_defaults();
    assert_eq!(toml::from_str(&complete.to_toml()).as_ref(), Ok(&complete), "what is printed can be read");
}

/// Files that are right, wrong, empty and no TOML at all.
#[must_use]
pub fn file_samples() -> Vec<Vec<u8>> {
    let all = "socket = \"/run/x.sock\"\nusers = \"own\"\npolling = \"block\"\nspin_us = 100\nengine_cpu = 0\n\
               device = \"tcp\"\nroce_interface = \"eth0\"\ntcp_busy_poll_us = 50\ntcp_zero_copy = \"never\"\ntcp_connections = 4\ntcp_congestion = \"reno\"\nfault = \"loss=0.01,seed=7\"\npcap = \"x\"\npeer_timeout_ms = 1000\nworkspace_mib = 16\nlate_after_s = 5\nidle_exit_s = 60\n\
               log_level = \"debug\"\nlog_format = \"json\"\nring_submissions_max = 64\nring_argument_words = 64\n\
               [quotas]\nsessions = 1\ncommunicators = 2\nregions = 3\nregion_mib = 4\n";
    let texts = [
        all,
        "",
        "socket = \"relative\"",
        "polling = \"sometimes\"",
        "polling = 7",
        "spin_us = -1",
        "spin_us = 9223372036854775807",
        "engine_cpu = 99999",
        "ring_submissions_max = 48",
        "listen = \"10.0.0.1\"",
        "colour = \"red\"",
        "[quotas]\nregion_mib = 0",
        "[quotas]\nfolders = 1",
        "socket = \"",
        "[[quotas]]",
        "socket = \"\\u0000\"",
        "= = =",
    ];
    texts.iter().map(|t| t.as_bytes().to_vec()).collect()
}
