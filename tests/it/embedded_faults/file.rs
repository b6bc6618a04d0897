//! The file of a store that is moved, deleted, damaged or open to others.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::lock::lease::LockStatus;
use lockkeeper::lock::prefixes::Prefixes;
use lockkeeper::lock::store::{Page, Store};
use lockkeeper::lock::time::Ttl;
use lockkeeper::metrics::Metrics;
use lockkeeper::store::embedded::EmbeddedSettings;
use lockkeeper::store::{StoreSettings, open};
use rusqlite::Connection;

use crate::redis_faults::clock::Clock;
use crate::support::process::{BINARY, command};
use crate::support::{PATIENCE, Process, eventually, in_memory};

const TOKEN: &str = "token-of-the-holder";

#[test]
fn a_link_that_leads_nowhere_is_refused_and_nothing_is_made_or_changed_through_a_link() {
    let above = tempfile::tempdir().unwrap();
    let (elsewhere, directory) = (above.path().join("elsewhere"), above.path().join("data"));
    let store = format!("embedded:{}", directory.display());
    fs::create_dir(&directory).unwrap();
    symlink(&elsewhere, directory.join("locks.sqlite")).unwrap();
    assert_refused(&store, "locks.sqlite cannot be used: No such file or directory");
    assert!(!elsewhere.exists() && directory.join("locks.sqlite").is_symlink());
    fs::remove_file(directory.join("locks.sqlite")).unwrap();
    // As a start leaves it that was cut short.
    fs::write(&elsewhere, "of another").unwrap();
    symlink(&elsewhere, directory.join("locks.sqlite.new")).unwrap();
    drop(Process::start(&store, &[]));
    assert!(
        directory.join("locks.sqlite").is_file() && !directory.join("locks.sqlite").is_symlink()
    );
    assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "of another");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_without_its_file_grants_nothing_lets_nobody_else_in_and_goes_on_with_it() {
    let above = tempfile::tempdir().unwrap();
    let directory = above.path().join("data");
    let store = format!("embedded:{}", directory.display());
    let service = Process::start(&store, &[]);
    let http = service.http();
    assert_eq!(http.post("/locks/a", &format!(r#"{{"token":"{TOKEN}"}}"#)).await.status, 201);
    let holder = http.token(TOKEN);
    let moved = [
        (directory.join("locks.sqlite"), above.path().join("elsewhere.sqlite")),
        (directory.join("locks.sqlite-wal"), above.path().join("elsewhere.sqlite-wal")),
        (directory.join("locks.sqlite-note"), above.path().join("elsewhere.sqlite-note")),
        (directory.clone(), above.path().join("elsewhere")),
    ];
    for (round, (from, to)) in moved.into_iter().enumerate() {
        fs::rename(&from, &to).unwrap();
        // A directory that is moved takes its lock with it.
        let is_locked = from != directory;
        let refused = "another process serves the locks in";
        is_locked.then(|| assert_refused(&store, refused));
        // A second is what it may take; it looks more than twice in it.
        eventually(Duration::from_secs(2), async || {
            let answer = http.post("/locks/b?ttl=100ms", "").await;
            // So short a lease may also be over before it is on disk, which is unknown.
            (answer.status == 503 && answer.text("outcome") == "not_acquired").then_some(())
        })
        .await;
        assert_eq!(holder.put("/locks/a/refresh", "").await.status, 503);
        assert_eq!(http.get("/locks/a").await.status, 503);
        let told = http.post("/locks/b?ttl=1s", "").await;
        assert_eq!(told.text("detail"), "the file was moved: nothing was acquired", "{told:?}");
        assert_eq!(http.figure("lockkeeper_embedded_up").await, 0.0);
        is_locked.then(|| assert_refused(&store, refused));
        assert!(
            service.log().contains("was moved, deleted, replaced or written to"),
            "{}",
            service.log()
        );

        let _ = fs::remove_dir_all(&from);
        fs::rename(&to, &from).unwrap();
        eventually(PATIENCE, async || {
            (holder.put("/locks/a/refresh", "").await.status == 200).then_some(())
        })
        .await;
        eventually(PATIENCE, async || {
            let again = service.log().matches("the store answers again").count();
            (again == round + 1).then_some(())
        })
        .await;
        assert_eq!(holder.get("/locks/a").await.field("mine"), true);
        assert_eq!(http.figure("lockkeeper_embedded_up").await, 1.0);
    }
    // Another file in its place is not taken for it.
    fs::rename(directory.join("locks.sqlite"), above.path().join("kept.sqlite")).unwrap();
    fs::copy(above.path().join("kept.sqlite"), directory.join("locks.sqlite")).unwrap();
    eventually(Duration::from_secs(2), async || {
        let answer = http.post("/locks/c?ttl=100ms", "").await;
        (answer.status == 503 && answer.text("outcome") == "not_acquired").then_some(())
    })
    .await;
    service.signal("TERM");
    // What nobody received cannot be taken back without the file.
    assert!(matches!(service.wait(), Some(0 | 3)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_overwritten_or_cut_in_place_grants_nothing() {
    let overwrite = |file: &fs::File| file.write_all_at(&[0; 4_096], 0).unwrap();
    let cut = |file: &fs::File| file.set_len(4_096).unwrap();
    for damage in [&overwrite as &dyn Fn(&fs::File), &cut] {
        let directory = tempfile::tempdir().unwrap();
        let store = format!("embedded:{}", directory.path().display());
        let service = Process::start(&store, &[]);
        assert_eq!(service.http().post("/locks/a?ttl=1h", "").await.status, 201);
        // After a clean end all of it is in the database, and nothing in its log.
        service.signal("TERM");
        assert_eq!(service.wait(), Some(0));
        let service = Process::start(&store, &[]);
        let http = service.http();
        let path = directory.path().join("locks.sqlite");
        damage(&fs::OpenOptions::new().write(true).open(&path).unwrap());
        eventually(Duration::from_secs(2), async || {
            (http.post("/locks/b", "").await.status == 503).then_some(())
        })
        .await;
        let said = || {
            let log = service.log();
            log.contains("written to under the running service") || log.contains("is damaged")
        };
        eventually(PATIENCE, async || said().then_some(())).await;
        assert_eq!(service.wait(), Some(4));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_file_is_refused_or_read_in_full() {
    for killed in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        let service = Process::start(&format!("embedded:{}", directory.path().display()), &[]);
        let http = service.http();
        for number in 0..120 {
            let body =
                format!(r#"{{"token":"{TOKEN}-{number}","owner":"o{number}","ttl_ms":86000000}}"#);
            assert_eq!(http.post(&format!("/locks/{number:03}"), &body).await.status, 201);
        }
        for number in 0..30 {
            let holder = http.token(&format!("{TOKEN}-{number}"));
            assert_eq!(holder.delete(&format!("/locks/{number:03}")).await.status, 204);
        }
        if killed {
            service.kill();
        } else {
            service.signal("TERM");
            assert_eq!(service.wait(), Some(0));
        }
        let whole = files_in(directory.path());
        assert_eq!(whole.contains_key("locks.sqlite-wal"), killed);
        let expected = held(&read(&whole).await.unwrap());
        assert_eq!(expected.len(), 90);
        let (mut refused, mut random) = (0, Random(7));
        for trial in 0..200 {
            let mut files = whole.clone();
            let damaged = random.below(files.len());
            random.damage(files.values_mut().nth(damaged).unwrap(), trial);
            match read(&files).await {
                Ok(found) => assert_eq!(held(&found), expected, "trial {trial}, killed: {killed}"),
                Err(told) => {
                    assert!(told.contains("locks.sqlite"), "{told}");
                    assert!(told.contains("away to begin without"), "{told}");
                    refused += 1;
                }
            }
        }
        assert!(refused > 20, "only {refused} of the damaged files were refused");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_another_format_is_refused_in_one_sentence_and_keeps_its_leases() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("embedded:{}", directory.path().display());
    let service = Process::start(&store, &[]);
    let holder = service.http().token(TOKEN);
    assert_eq!(holder.post("/locks/a?ttl=24h", "").await.status, 201);
    service.signal("TERM");
    assert_eq!(service.wait(), Some(0));
    let set_format = |format: u64| {
        let database = Connection::open(directory.path().join("locks.sqlite")).unwrap();
        database.pragma_update(None, "user_version", format).unwrap();
    };
    let refused = |store: &str, other: u64| {
        let told =
            format!("locks.sqlite has format {other}, and this lockkeeper reads format 3 only");
        assert_refused(store, &told);
    };
    for other in [0, 2, 4] {
        set_format(other);
        refused(&store, other);
    }
    set_format(3);
    let service = Process::start(&store, &[]);
    let holder = service.http().token(TOKEN);
    assert_eq!(holder.put("/locks/a/refresh", "").await.status, 200);
}

/// A change of the format takes another number.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_this_format_that_was_written_earlier_is_read() {
    let file = include_bytes!("format-3.sqlite").to_vec();
    let found = read(&[("locks.sqlite".to_owned(), file)].into()).await.unwrap();
    let told = |status: &LockStatus| {
        let sharers = status.sharers.as_ref();
        let holders = sharers.map(|all| (all.holders, all.units, all.slots.number()));
        let owner = status.holder.as_ref().and_then(|holder| holder.owner.clone());
        let owner = owner.map(|owner| owner.as_str().to_owned());
        (status.key.to_string(), owner, holders)
    };
    let owned = ("owned".to_owned(), Some("web-1".to_owned()), None);
    let shared = ("shared".to_owned(), None, Some((2, 3, 3)));
    assert_eq!(found.iter().map(told).collect::<Vec<_>>(), [owned, shared]);
    let holder = found[0].holder.as_ref().unwrap();
    assert_eq!(holder.fencing_token.unwrap().number(), 1_796_053_662_094_410);
    assert!(holder.held.unwrap() < Duration::from_secs(60), "{holder:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_open_to_others_is_closed_to_them() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("embedded:{}/new/deep", directory.path().display());
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let names = ["locks.sqlite", "locks.sqlite-note", "locks.sqlite-wal", "locks.sqlite-shm"];
    let paths = names.map(|name| directory.path().join("new/deep").join(name));
    for key in ["a", "b"] {
        let service = Process::start(&store, &[]);
        assert_eq!(service.http().post(&format!("/locks/{key}"), "").await.status, 201);
        assert_eq!(paths.each_ref().map(|path| mode(path)), [0o600; 4]);
        assert_eq!(mode(&directory.path().join("new")), 0o700);
        service.kill();
        for path in &paths[..3] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o666)).unwrap();
        }
    }
    let service = Process::start(&store, &[]);
    assert_eq!(paths.each_ref().map(|path| mode(path)), [0o600; 4]);
    assert_eq!(service.log().matches("file was open to others").count(), 3, "{}", service.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wall_clock_that_leaps_cannot_use_up_the_fencing_tokens() {
    // 2^53 microseconds, in the year 2255.
    const LAST: u64 = 1 << 53;
    let clock = Clock::make();
    let directory = tempfile::tempdir().unwrap();
    let store = format!("embedded:{}", directory.path().display());
    let service = clock.service(&store);
    let http = service.http();
    let mut last = 0;
    let now = lockkeeper::lock::time::wall_clock_micros();
    for ahead in [0, (LAST - now) / 1_000 - 60_000, (LAST - now) / 1_000, 0, 600_000] {
        clock.step_ms(i64::try_from(ahead).unwrap());
        let granted = http.post(&format!("/locks/{ahead}-{last}"), "").await;
        assert_eq!(granted.status, 201, "{granted:?}");
        let fencing_token = granted.number("fencing_token");
        assert!(fencing_token > last, "{fencing_token} after {last}");
        last = fencing_token;
    }
    assert!(LAST - last > LAST / 2, "only {} are left", LAST - last);
}

pub(super) fn assert_refused(store: &str, expected: &str) {
    let second =
        command(BINARY).args(["serve", "--listen", "127.0.0.1:0", "--store", store]).output();
    let second = second.unwrap();
    let told = String::from_utf8(second.stderr).unwrap();
    assert_eq!(second.status.code(), Some(1), "{told}");
    assert!(told.contains(expected) && told.lines().count() == 1, "{told}");
}

/// The files of a store by their names, but for the memory that its readers share.
pub(super) type Files = BTreeMap<String, Vec<u8>>;

pub(super) fn files_in(directory: &Path) -> Files {
    let files = fs::read_dir(directory).unwrap().map(|file| {
        let name = file.unwrap().file_name().into_string().unwrap();
        (name.clone(), fs::read(directory.join(name)).unwrap())
    });
    files.filter(|(name, _)| !name.ends_with("-shm")).collect()
}

pub(super) fn write_files(files: &Files, directory: &Path) {
    for (name, file) in files {
        fs::write(directory.join(name), file).unwrap();
    }
}

/// What files hold, or why they are refused.
pub(super) async fn read(files: &Files) -> Result<Vec<LockStatus>, String> {
    let directory = in_memory();
    write_files(files, directory.path());
    let store = opened(directory.path().to_owned())?;
    let page = Page { prefixes: [String::new()].into(), after: None, limit: 1_000 };
    Ok(store.list(&page).await.unwrap().locks)
}

fn opened(directory: PathBuf) -> Result<Arc<dyn Store>, String> {
    let position_kept = Ttl::from_millis(5_000);
    let prefixes = Prefixes::default();
    let settings = EmbeddedSettings { position_kept, command_timeout: PATIENCE, prefixes };
    let metrics = Arc::new(Metrics::for_embedded());
    open(StoreSettings::Embedded(directory, settings), metrics).map_err(|error| error.to_string())
}

fn held(statuses: &[LockStatus]) -> BTreeMap<String, String> {
    let told = |status: &LockStatus| {
        let holder = status.holder.as_ref().unwrap();
        (status.key.to_string(), format!("{:?} {:?}", holder.owner, holder.fencing_token))
    };
    statuses.iter().map(told).collect()
}

/// A generator that is the same in every run.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) as usize % bound
    }

    /// A place that is in use.
    fn place(&mut self, file: &[u8]) -> usize {
        loop {
            let at = self.below(file.len());
            if file[at] != 0 {
                return at;
            }
        }
    }

    fn damage(&mut self, file: &mut Vec<u8>, trial: usize) {
        let page = |at: usize| at / 4_096 * 4_096;
        let at = self.place(file);
        match trial % 6 {
            0 => file[at] ^= 1 << self.below(8),
            1 => file.truncate(self.below(file.len())),
            2 => {
                let end = file.len().min(page(at) + 4_096);
                file[page(at)..end].fill(0);
            }
            3 => {
                let last = file.len() - 4_096;
                let from = page(self.place(file)).min(last);
                file.copy_within(from..from + 4_096, page(at).min(last));
            }
            4 => {
                // The head.
                let at = self.below(100.min(file.len()));
                file[at] ^= 1 << self.below(8);
            }
            _ => {
                for _ in 0..8 {
                    let at = self.place(file);
                    file[at] ^= 1 + u8::try_from(self.below(255)).unwrap();
                }
            }
        }
    }
}
