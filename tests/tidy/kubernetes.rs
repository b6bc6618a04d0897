//! The manifests for Kubernetes refer only to what the image and the service have.

use std::path::Path;

use lockkeeper::config::{Config, Flags, Sources, StoreUrl};
use serde::Deserialize;
use serde_json::Value;

use crate::source::{File, assert_found, assert_none, files};

/// Stands in the manifests for the digest of an API key.
const PLACEHOLDER: &str = "replace this by the SHA-256 of your secret";

/// The most seconds that a pod may take to stop, beyond its pause and `limits.shutdown_time`.
const SPARE: u64 = 5;

#[test]
fn every_manifest_fits_the_image_and_the_service() {
    let manifests = files("deploy/kubernetes", "yaml");
    assert!(manifests.len() >= 2, "only {} manifests", manifests.len());
    assert_none(
        &manifests.iter().flat_map(|file| misfits(file, &Image::read())).collect::<Vec<_>>(),
    );
}

#[test]
fn a_manifest_starts_with_the_digest_of_a_secret_and_not_without() {
    for file in files("deploy/kubernetes", "yaml") {
        let secret = secret(&file);
        let settings = text(&secret["stringData"]["lockkeeper.toml"]);
        let whole = settings.replace(PLACEHOLDER, &"0".repeat(64));
        assert_ne!(whole, settings, "{}: the API key is not to be replaced", file.path);
        let variables = variables(&file, &Image::read());
        assert_eq!(parse(&whole, &variables).unwrap().api_keys.len(), 1);
        assert!(parse(settings, &variables).is_err(), "{}: it starts as it is", file.path);
    }
}

/// What a pod takes for granted.
struct Image {
    variables: Vec<(String, String)>,
    port: u64,
    user: u64,
    version: String,
    paths: String,
}

impl Image {
    fn read() -> Self {
        let dockerfile = File::read("Dockerfile").text;
        let after = |begin: &str| {
            let line = dockerfile.lines().find_map(|line| line.strip_prefix(begin));
            line.unwrap_or_else(|| panic!("no {begin}")).to_owned()
        };
        let lines = dockerfile.lines().filter(|line| !line.starts_with('#'));
        let words = lines.flat_map(str::split_whitespace).filter_map(|word| word.split_once('='));
        let variables = words.filter(|(name, _)| name.starts_with("LOCKKEEPER_"));
        let manifest: toml::Table = File::read("Cargo.toml").text.parse().unwrap();
        Self {
            variables: variables.map(|(name, text)| (name.to_owned(), text.to_owned())).collect(),
            port: after("EXPOSE ").parse().unwrap(),
            user: after("USER ").split(':').next().unwrap().parse().unwrap(),
            version: manifest["package"]["version"].as_str().unwrap().to_owned(),
            paths: File::read("src/api/mod.rs").text,
        }
    }

    fn variable(&self, name: &str) -> &str {
        let found = self.variables.iter().find(|(its, _)| its == name);
        found.map(|(_, text)| text.as_str()).unwrap_or_default()
    }
}

fn documents(file: &File) -> Vec<Value> {
    let parts = serde_norway::Deserializer::from_str(&file.text);
    parts.map(|part| Value::deserialize(part).unwrap()).collect()
}

fn of_kind(file: &File, kinds: &[&str]) -> Value {
    let found = documents(file).into_iter().find(|one| kinds.contains(&text(&one["kind"])));
    found.unwrap_or_else(|| panic!("{}: none of {kinds:?}", file.path))
}

fn secret(file: &File) -> Value {
    of_kind(file, &["Secret"])
}

fn pod(file: &File) -> Value {
    of_kind(file, &["StatefulSet", "Deployment"])["spec"]["template"]["spec"].clone()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn list(value: &Value) -> &[Value] {
    match value {
        Value::Array(list) => list,
        _ => &[],
    }
}

/// The variables of a pod's container over those of the image, without the settings file.
fn variables(file: &File, image: &Image) -> Vec<(String, String)> {
    let secret = secret(file);
    let mut all = image.variables.clone();
    for variable in list(&pod(file)["containers"][0]["env"]) {
        let from = &variable["valueFrom"]["secretKeyRef"]["key"];
        let value = match from.as_str() {
            Some(key) => text(&secret["stringData"][key]),
            None => text(&variable["value"]),
        };
        all.retain(|(name, _)| name != text(&variable["name"]));
        all.push((text(&variable["name"]).to_owned(), value.to_owned()));
    }
    all.retain(|(name, _)| name != "LOCKKEEPER_CONFIG");
    all
}

fn parse(settings: &str, variables: &[(String, String)]) -> Result<Config, String> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("lockkeeper.toml");
    std::fs::write(&path, settings).unwrap();
    let flags = Flags { config: Some(path), ..Flags::default() };
    let sources = Sources::find(&flags, variables.iter().cloned());
    Config::of(&sources.map_err(|error| error.to_string())?).map_err(|error| error.to_string())
}

fn misfits(file: &File, image: &Image) -> Vec<String> {
    let (pod, settings) = (pod(file), secret(file)["stringData"]["lockkeeper.toml"].clone());
    let (container, service) = (&pod["containers"][0], of_kind(file, &["Service"]));
    let settings = text(&settings).replace(PLACEHOLDER, &"0".repeat(64));
    let config = match parse(&settings, &variables(file, image)) {
        Ok(config) => config,
        Err(error) => return vec![format!("{}: {error}", file.path)],
    };
    let mount = |path: &str| {
        let mounts = list(&container["volumeMounts"]).iter();
        mounts.map(|one| text(&one["mountPath"])).any(|there| Path::new(path).starts_with(there))
    };
    let port = &container["ports"][0];
    let pause = container["lifecycle"]["preStop"]["sleep"]["seconds"].as_u64().unwrap_or(0);
    let stop = config.limits.shutdown_time.get().as_secs() + pause + SPARE;
    let env = list(&container["env"]).iter();
    let own = env.filter(|one| one["name"] == "LOCKKEEPER_CONFIG").map(|one| text(&one["value"]));
    let on_a_volume = match &config.store {
        StoreUrl::Embedded(path) => {
            mount(path.to_str().unwrap()) && !list(&pod["volumes"]).is_empty()
        }
        _ => true,
    };
    let user = &pod["securityContext"];
    let within = &container["securityContext"];
    let mut rules = vec![
        ("the image is not of this version", {
            text(&container["image"]).ends_with(&format!(":{}", image.version))
        }),
        ("another port than the image's", port["containerPort"] == image.port),
        ("the service listens on another port", {
            image.variable("LOCKKEEPER_LISTEN").ends_with(&format!(":{}", image.port))
                && config.listen.to_string().ends_with(&format!(":{}", image.port))
        }),
        ("the Service has another port", service["spec"]["ports"][0]["port"] == image.port),
        ("the Service leads to no port", {
            service["spec"]["ports"][0]["targetPort"] == port["name"] && !port["name"].is_null()
        }),
        ("another user than the image's", {
            user["runAsUser"] == image.user && user["fsGroup"] == image.user
        }),
        ("it may be root", user["runAsNonRoot"] == true),
        ("it has no seccomp profile", user["seccompProfile"]["type"] == "RuntimeDefault"),
        ("it may write to its root", within["readOnlyRootFilesystem"] == true),
        ("it may get more rights", within["allowPrivilegeEscalation"] == false),
        ("it has capabilities", within["capabilities"]["drop"][0] == "ALL"),
        ("its leases are on no volume", on_a_volume),
        ("its settings are not mounted", own.clone().count() == 1 && own.clone().all(mount)),
        ("it is killed while it stops", {
            pod["terminationGracePeriodSeconds"].as_u64().is_some_and(|grace| grace >= stop)
        }),
    ];
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        let path = text(&container[probe]["httpGet"]["path"]);
        let is_there = image.paths.contains(&format!(".route(\"{path}\", "));
        rules.push(("a probe asks for a path that is not there", is_there));
    }
    let broken = rules.into_iter().filter(|(_, holds)| !holds);
    broken.map(|(what, _)| format!("{}: {what}", file.path)).collect()
}

#[test]
fn a_manifest_that_does_not_fit_is_found() {
    let image = Image::read();
    let good = File::read("deploy/kubernetes/embedded.yaml");
    assert_none(&misfits(&good, &image));
    for (from, to, fault) in [
        ("path: /healthz, port: http}\n            periodSeconds: 10", "path: /alive}", "a probe"),
        ("containerPort: 8080", "containerPort: 80", "another port"),
        ("Seconds: 30", "Seconds: 15", "killed while it stops"),
        ("runAsUser: 65532", "runAsUser: 1000", "another user"),
        ("mountPath: /var/lib/lockkeeper", "mountPath: /data", "on no volume"),
        ("value: /etc/lockkeeper", "value: /etc/lockkeepers", "not mounted"),
        ("[[api_keys]]", "[[api_kies]]", "api_kies"),
    ] {
        let planted = good.text.replacen(from, to, 1);
        assert_ne!(planted, good.text, "{from}");
        assert_found(&misfits(&File::planted(&good.path, &planted), &image), fault);
    }
}
