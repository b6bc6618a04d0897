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
use redb::{Database, TableDefinition};

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
    symlink(&elsewhere, directory.join("locks.redb")).unwrap();
    assert_refused(&store, "locks.redb cannot be used: No such file or directory");
    assert!(!elsewhere.exists() && directory.join("locks.redb").is_symlink());
    fs::remove_file(directory.join("locks.redb")).unwrap();
    // As a start leaves it that was cut short.
    fs::write(&elsewhere, "of another").unwrap();
    symlink(&elsewhere, directory.join("locks.redb.new")).unwrap();
    drop(Process::start(&store, &[]));
    assert!(directory.join("locks.redb").is_file() && !directory.join("locks.redb").is_symlink());
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
    for (from, to) in [
        (directory.join("locks.redb"), above.path().join("elsewhere.redb")),
        (directory.clone(), above.path().join("elsewhere")),
    ] {
        fs::rename(&from, &to).unwrap();
        assert_refused(&store, "another process serves the locks in");
        // A second is what it may take; it looks more than twice in it.
        eventually(Duration::from_secs(2), async || {
            let answer = http.post("/locks/b?ttl=100ms", "").await;
            // So short a lease may also be over before it is on disk, which is unknown.
            (answer.status == 503 && answer.text("outcome") == "not_acquired").then_some(())
        })
        .await;
        assert_eq!(holder.put("/locks/a/refresh", "").await.status, 503);
        assert_eq!(http.get("/locks/a").await.status, 503);
        assert_eq!(http.figure("lockkeeper_embedded_up").await, 0.0);
        assert_refused(&store, "another process serves the locks in");
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
        assert_eq!(holder.get("/locks/a").await.field("mine"), true);
        assert_eq!(http.figure("lockkeeper_embedded_up").await, 1.0);
    }
    // Another file in its place is not taken for it.
    fs::rename(directory.join("locks.redb"), above.path().join("kept.redb")).unwrap();
    fs::copy(above.path().join("kept.redb"), directory.join("locks.redb")).unwrap();
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
        let service = Process::start(&format!("embedded:{}", directory.path().display()), &[]);
        let http = service.http();
        assert_eq!(http.post("/locks/a?ttl=1h", "").await.status, 201);
        let path = directory.path().join("locks.redb");
        damage(&fs::OpenOptions::new().write(true).open(&path).unwrap());
        eventually(Duration::from_secs(2), async || {
            (http.post("/locks/b", "").await.status == 503).then_some(())
        })
        .await;
        let said = "written to under the running service";
        eventually(PATIENCE, async || service.log().contains(said).then_some(())).await;
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
        let whole = fs::read(directory.path().join("locks.redb")).unwrap();
        let expected = held(&read(&whole).await.unwrap());
        assert_eq!(expected.len(), 90);
        let (mut refused, mut random) = (0, Random(7));
        for trial in 0..150 {
            let mut file = whole.clone();
            random.damage(&mut file, trial);
            match read(&file).await {
                Ok(found) => assert_eq!(held(&found), expected, "trial {trial}, killed: {killed}"),
                Err(told) => {
                    assert!(told.contains("locks.redb"), "{told}");
                    assert!(told.contains("move it away"), "{told}");
                    refused += 1;
                }
            }
        }
        assert!(refused > 20, "only {refused} of the damaged files were refused");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_another_format_is_refused_in_one_sentence_and_keeps_its_leases() {
    const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
    let directory = tempfile::tempdir().unwrap();
    let store = format!("embedded:{}", directory.path().display());
    let service = Process::start(&store, &[]);
    let holder = service.http().token(TOKEN);
    assert_eq!(holder.post("/locks/a?ttl=24h", "").await.status, 201);
    service.signal("TERM");
    assert_eq!(service.wait(), Some(0));
    let set_format = |format: u64| {
        let database = Database::open(directory.path().join("locks.redb")).unwrap();
        let change = database.begin_write().unwrap();
        change.open_table(META).unwrap().insert("format", format).unwrap();
        change.commit().unwrap();
    };
    for other in [0, 2] {
        set_format(other);
        let told =
            format!("locks.redb has format {other}, and this lockkeeper reads format 1 only");
        assert_refused(&store, &told);
    }
    set_format(1);
    let service = Process::start(&store, &[]);
    let holder = service.http().token(TOKEN);
    assert_eq!(holder.put("/locks/a/refresh", "").await.status, 200);
}

/// A change of the format takes another number.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_this_format_that_was_written_earlier_is_read() {
    let found = read(include_bytes!("format-1.redb")).await.unwrap();
    let told = |status: &LockStatus| {
        let holders = status.sharers.as_ref().map(|all| (all.holders, all.slots.number()));
        let owner = status.holder.as_ref().and_then(|holder| holder.owner.clone());
        let owner = owner.map(|owner| owner.as_str().to_owned());
        (status.key.to_string(), owner, holders)
    };
    let owned = ("owned".to_owned(), Some("web-1".to_owned()), None);
    let shared = ("shared".to_owned(), None, Some((2, 3)));
    assert_eq!(found.iter().map(told).collect::<Vec<_>>(), [owned, shared]);
    let holder = found[0].holder.as_ref().unwrap();
    assert_eq!(holder.fencing_token.unwrap().number(), 1_795_703_688_845_172);
    assert!(holder.held.unwrap() < Duration::from_secs(60), "{holder:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_open_to_others_is_closed_to_them() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("embedded:{}/new/deep", directory.path().display());
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let path = directory.path().join("new/deep/locks.redb");
    drop(Process::start(&store, &[]));
    assert_eq!(mode(&path), 0o600);
    assert_eq!(mode(&directory.path().join("new")), 0o700);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    let service = Process::start(&store, &[]);
    assert_eq!(mode(&path), 0o600);
    assert!(service.log().contains("file was open to others"), "{}", service.log());
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

fn assert_refused(store: &str, expected: &str) {
    let second =
        command(BINARY).args(["serve", "--listen", "127.0.0.1:0", "--store", store]).output();
    let second = second.unwrap();
    let told = String::from_utf8(second.stderr).unwrap();
    assert_eq!(second.status.code(), Some(1), "{told}");
    assert!(told.contains(expected) && told.lines().count() == 1, "{told}");
}

/// What a file holds, or why it is refused.
pub(super) async fn read(file: &[u8]) -> Result<Vec<LockStatus>, String> {
    let directory = in_memory();
    fs::write(directory.path().join("locks.redb"), file).unwrap();
    let store = opened(directory.path().to_owned())?;
    let page = Page { prefixes: [String::new()].into(), after: None, limit: 1_000 };
    Ok(store.list(&page).await.unwrap())
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
            2 => file[page(at)..page(at) + 4_096].fill(0),
            3 => {
                let from = page(self.place(file));
                file.copy_within(from..from + 4_096, page(at));
            }
            4 => {
                // The head, where the last commit is named.
                let at = self.below(320);
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
