//! Owns how settings about credentials look: a key that stands where a path belongs, a project id, a metadata server.
//! Must never know: how a key is read.

/// Paths are shorter on every system.
const LONGEST_PATH: usize = 4096;

/// Whether the value of a setting for a path is a key itself, which is secret. People do put it there: platforms that
/// have variables and no files leave nothing else to do with `GOOGLE_APPLICATION_CREDENTIALS`.
pub(super) fn is_key(value: &str) -> bool {
    let text = value.trim_matches(|c: char| c.is_whitespace() || matches!(c, '\u{feff}' | '"' | '\'' | '`' | '\\'));
    // Base64 of anything, in either alphabet: a path this long begins with a slash or has a dot in it. `AIza` is an API
    // key, refused as one, but by somebody who does not repeat it.
    let of_base64 = |b: u8| b.is_ascii_alphanumeric() || b.is_ascii_whitespace() || b"+/-_=".contains(&b);
    let coded = text.len() > 100 && !text.starts_with('/') && text.bytes().all(of_base64);
    text.starts_with(['{', '<'])
        || text.starts_with("-----BEGIN")
        || text.starts_with("AIza")
        || coded
        || value.trim().contains('\n')
        || value.len() > LONGEST_PATH
}

/// The path in a value, without what a `.env` file left around it.
pub(super) fn plain_path(value: &str) -> &str {
    let value = value.trim();
    let within = |quote| value.strip_prefix(quote).and_then(|rest: &str| rest.strip_suffix(quote));
    within('"').or_else(|| within('\'')).unwrap_or(value)
}

/// Whether Google could have given this id to a project: 6 to 30 small letters, digits and hyphens, a letter first and
/// no hyphen last (<https://cloud.google.com/resource-manager/docs/creating-managing-projects>), in old projects after
/// the name of a domain. The number of a project is taken by FCM as well.
#[must_use]
pub fn is_project_id(id: &str) -> bool {
    let (domain, name) = id.split_once(':').unwrap_or(("a", id));
    let small = |text: &str, more: &str| {
        text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || more.contains(char::from(b)))
    };
    let named = (6..=30).contains(&name.len())
        && small(name, "-")
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && !name.ends_with('-');
    let numbered = (6..=20).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_digit());
    numbered || (named && !domain.is_empty() && small(domain, ".-"))
}

/// Whether this is `HOST` or `HOST:PORT`.
pub(super) fn is_host(host: &str) -> bool {
    let authority = host.parse::<http::uri::Authority>().ok().filter(|_| !host.contains('@'));
    authority.is_some_and(|a| !a.host().is_empty() && (a.as_str() == a.host() || a.port_u16().is_some()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_told_from_a_path() {
        let coded = format!("eyJ0eXBlIjog{}", "A".repeat(120));
        let lines = format!("ewog\n{coded}");
        let wrapped = ["InsidHlw", "77u/ewog", "IHsidHlw", "e1widHlw", "ZXlKMGVY"].map(|start| start.repeat(20));
        for key in [
            "{}",
            " \u{feff}{\"a\"",
            "'{\"a\":1}'",
            "\"{\\\"a",
            "-----BEGIN PRIVATE KEY-----",
            "AIzaSy",
            &coded,
            &lines,
        ] {
            assert!(is_key(key), "{key:?}");
        }
        for key in wrapped.iter().flat_map(|key| [key.clone(), format!("'{key}'\n")]) {
            assert!(is_key(&key), "{key:?}");
        }
        let deep = format!("/{}", "a/".repeat(200));
        for path in
            ["", "key.json", "/keys/sa.json", "./{x}.json", "eyes.json", "ewe", "C:\\sa.json", "/a b", "~/k", &deep]
        {
            assert!(!is_key(path), "{path:?}");
        }
    }

    #[test]
    fn a_path_is_freed_of_quotes_and_blanks() {
        for path in ["/keys/sa.json", "\"/keys/sa.json\"", "'/keys/sa.json'", " /keys/sa.json\n"] {
            assert_eq!(plain_path(path), "/keys/sa.json");
        }
        assert_eq!((plain_path(""), plain_path("\""), plain_path("a'b")), ("", "\"", "a'b"));
    }

    #[test]
    fn ids_of_projects_are_told_from_what_people_mix_them_up_with() {
        for id in ["demo-project", "a23456", "my-app-1a2b3", "example.com:my-project", "123456789012"] {
            assert!(is_project_id(id), "{id}");
        }
        for not in [
            "",
            "short",
            "Demo-Project",
            "demo_project",
            "demo-project-",
            "1-project",
            "My Project",
            ":my-project",
            "a/../bcde",
            "projects/demo-project",
            "demo-project.firebaseapp.com",
            "a234567890123456789012345678901",
            "12345",
            "demo-projéct",
        ] {
            assert!(!is_project_id(not), "{not}");
        }
    }

    #[test]
    fn a_host_is_no_url() {
        for host in ["metadata.google.internal", "169.254.169.254", "127.0.0.1:8080", "[::1]:80"] {
            assert!(is_host(host), "{host}");
        }
        for not in ["", "http://h", "h/p", "u@h", "h:port", ":80", "a b"] {
            assert!(!is_host(not), "{not}");
        }
    }
}
