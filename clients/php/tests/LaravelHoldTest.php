<?php

declare(strict_types=1);

namespace Lockkeeper\Tests;

require_once __DIR__ . '/scheduler.php';

use Illuminate\Bus\UniqueLock;
use Illuminate\Cache\ArrayStore;
use Illuminate\Cache\Repository;
use Illuminate\Console\Scheduling\Event;
use Illuminate\Console\Scheduling\EventMutex;
use Illuminate\Console\Scheduling\Schedule;
use Illuminate\Console\Scheduling\SchedulingMutex;
use Illuminate\Container\Container;
use Illuminate\Events\CallQueuedListener;
use Lockkeeper\Exception\Outcome;
use Lockkeeper\Laravel\LockkeeperCacheStore;
use Lockkeeper\Laravel\LockkeeperEventMutex;
use Lockkeeper\Laravel\LockkeeperSchedulingMutex;
use Lockkeeper\Laravel\WithoutOverlapping;
use Lockkeeper\Tests\Scheduler\Application;
use Lockkeeper\Tests\Scheduler\Job;
use Lockkeeper\Tests\Scheduler\UniqueJob;
use PHPUnit\Framework\Attributes\DataProvider;

use function Lockkeeper\Tests\Scheduler\application;
use function Lockkeeper\Tests\Scheduler\clear;
use function Lockkeeper\Tests\Scheduler\run;
use function Lockkeeper\Tests\Scheduler\work;

/** Laravel's scheduler and queue with locks that last while their process lives; the API key may only acquire. */
final class LaravelHoldTest extends TestCase
{
    /** A script with `$app`; its arguments are the prefix, the API key, and more. */
    private const APP = 'require "' . __DIR__ . '/scheduler.php";
        use Illuminate\Console\Scheduling\Schedule;
        use Lockkeeper\Tests\Scheduler as S;
        $app = S\application($arguments[0], $arguments[1], 3600);
        $schedule = new Schedule();';

    private string $prefix;
    private Application $app;
    private string $log;

    protected function setUp(): void
    {
        $this->prefix = self::key('');
        $this->log = (string) ini_set('error_log', '/dev/null'); // What a lost lock leaves in the log.
        $this->app = application($this->prefix, self::env('PLAIN_API_KEY'));
    }

    protected function tearDown(): void
    {
        ini_set('error_log', $this->log);
        Container::setInstance(null);
        [Job::$does, UniqueJob::$via] = [null, null];
    }

    public function testTheProviderReplacesTheMutexesOnlyWhereItIsAskedTo(): void
    {
        self::assertInstanceOf(LockkeeperEventMutex::class, $this->app->make(EventMutex::class));
        self::assertInstanceOf(LockkeeperSchedulingMutex::class, $this->app->make(SchedulingMutex::class));
        $other = new Container();
        (new \Lockkeeper\Laravel\LockkeeperServiceProvider($other))->register();
        self::assertFalse($other->bound(EventMutex::class));
    }

    public function testATaskRunsAloneAndIsFreeAfterwards(): void
    {
        $ran = [];
        $schedule = new Schedule();
        $event = $schedule->call(function () use (&$ran, &$event): void {
            $ran[] = $this->isHeld($event);
            run($this->app, $this->onAnotherServer('task', $ran));
        })->name('task')->withoutOverlapping();
        run($this->app, $schedule);
        self::assertSame([true], $ran);
        self::assertFalse($this->isHeld($event));
        run($this->app, $this->onAnotherServer('task', $ran));
        self::assertSame([true, 'another'], $ran);
    }

    public function testATaskThatFailsIsFreeAfterwards(): void
    {
        $event = (new Schedule())->call(fn () => throw new \Exception())->name('fails')->withoutOverlapping();
        $this->thrown(\Exception::class, fn () => $event->run($this->app));
        self::assertFalse($this->isHeld($event));
    }

    public function testForgettingAndClearingFreesNobodyElses(): void
    {
        $mine = (new Schedule())->call(fn () => 1)->name('task')->withoutOverlapping();
        self::assertTrue($mine->mutex->create($mine));
        self::assertFalse($mine->mutex->create($mine));
        $otherApp = application($this->prefix, self::env('PLAIN_API_KEY'));
        $schedule = new Schedule();
        $other = $schedule->call(fn () => 1)->name('task')->withoutOverlapping();
        self::assertNotSame($mine->mutex, $other->mutex);
        clear($otherApp, $schedule);
        $other->mutex->forget($other);
        self::assertTrue($other->mutex->exists($other));
        $mine->mutex->forget($mine);
        self::eventually(fn () => !$other->mutex->exists($other));
    }

    public function testATaskThatIsForgottenBeforeItsEndKeepsItsLockWhileAProgramOfItRuns(): void
    {
        $event = (new Schedule())->exec('a command')->withoutOverlapping();
        $event->exitCode = 0; // Of its last run.
        self::assertTrue($event->mutex->create($event));
        $command = proc_open(['sleep', '600'], [], $none);
        $event->mutex->forget($event); // As Laravel 13 does on SIGTERM.
        sleep(2);
        $isHeld = $this->isHeld($event);
        proc_terminate($command, SIGKILL);
        proc_close($command);
        self::assertTrue($isHeld);
        self::eventually(fn () => !$this->isHeld($event));
    }

    public function testATaskInTheForegroundFreesItsLockAtItsEndAlsoIfItLeavesADaemonBehind(): void
    {
        $pid = tempnam(sys_get_temp_dir(), 'pid');
        $schedule = new Schedule();
        $event = $schedule->exec("sleep 600 & echo \$! > $pid; true")->withoutOverlapping();
        run($this->app, $schedule);
        $isHeld = $this->isHeld($event);
        $daemon = (int) file_get_contents($pid);
        unlink($pid);
        self::assertGreaterThan(0, $daemon);
        self::assertTrue(posix_kill($daemon, SIGKILL)); // It was there.
        self::assertFalse($isHeld);
    }

    public function testATaskThatLostItsLockDoesNotFreeThatOfTheNext(): void
    {
        $event = (new Schedule())->call(fn () => 1)->name('task')->withoutOverlapping();
        self::assertTrue($event->mutex->create($event));
        $this->client()->forceRelease($this->prefix . $event->mutexName());
        $next = $this->client()->acquire($this->prefix . $event->mutexName());
        $event->mutex->forget($event);
        self::assertTrue($next->release());
    }

    public function testTheMinutesOfWithoutOverlappingAreTheLongestThatItIsHeld(): void
    {
        $event = (new Schedule())->call(fn () => 1)->name('task')->withoutOverlapping();
        $event->expiresAt = 1 / 60;
        self::assertTrue($event->mutex->create($event));
        self::eventually(fn () => !$this->isHeld($event));
    }

    public function testAKilledScheduleRunFreesItsTaskWhateverTheMinutes(): void
    {
        [$process, $output] = $this->runs('$schedule->call(function () { echo "at work\n"; sleep(60); })
            ->name("task")->withoutOverlapping(1440); S\run($app, $schedule);');
        self::assertSame("at work\n", fgets($output));
        $event = (new Schedule())->call(fn () => 1)->name('task')->withoutOverlapping();
        self::assertTrue($this->isHeld($event));
        posix_kill(proc_get_status($process)['pid'], SIGKILL);
        proc_close($process);
        self::eventually(fn () => !$this->isHeld($event));
    }

    /** @dataProvider grounds */
    #[DataProvider('grounds')]
    public function testACommandKeepsItsLockUntilItHasEndedItself(string $where, bool $isKilled): void
    {
        $pid = tempnam(sys_get_temp_dir(), 'pid');
        $task = "exec(\$arguments[2]){$where}->withoutOverlapping()";
        $command = "sleep 600 & echo \$! > $pid; wait";
        [$process] = $this->runs("\$schedule->$task; S\\run(\$app, \$schedule);", $command);
        self::eventually(fn () => trim((string) file_get_contents($pid)) !== '');
        $event = (new Schedule())->exec($command)->withoutOverlapping();
        $isKilled && posix_kill(proc_get_status($process)['pid'], SIGKILL);
        proc_close($process);
        sleep(2);
        self::assertTrue($this->isHeld($event));
        posix_kill((int) file_get_contents($pid), SIGKILL);
        unlink($pid);
        self::eventually(fn () => !$this->isHeld($event));
    }

    public static function grounds(): array
    {
        return [
            'in the background' => ['->runInBackground()', false],
            'in the foreground, by an orphan' => ['', true],
        ];
    }

    public function testATaskInTheBackgroundIsNotKeptByProgramsOfLaterTasks(): void
    {
        [$process, $output] = $this->runs('$first = $schedule->exec("true")->runInBackground()->withoutOverlapping();
            $second = $schedule->call(function () use ($client, $arguments, $first) {
                $started = proc_open(["sleep", "60"], [], $none);
                for ($i = 0; $i < 200 && $first->mutex->exists($first); $i++) usleep(50000);
                echo json_encode($first->mutex->exists($first)), "\n";
                proc_terminate($started, 9);
            })->name("second")->withoutOverlapping(); S\run($app, $schedule);');
        self::assertSame("false\n", fgets($output));
        proc_close($process);
    }

    public function testOneServerHasTheTaskOfAMinuteAndKeepsItAfterItsEnd(): void
    {
        $time = new \DateTimeImmutable('2030-01-01 12:34');
        $event = (new Schedule())->call(fn () => 1)->name('once');
        $mutex = fn () => new LockkeeperSchedulingMutex($this->client(), $this->prefix);
        self::assertFalse($mutex()->exists($event, $time));
        $wins = array_map(fn () => $mutex()->create($event, $time), range(1, 3));
        gc_collect_cycles();
        self::assertSame([true, false, false], $wins);
        self::assertTrue($mutex()->exists($event, $time));
        self::assertTrue($mutex()->create($event, $time->modify('+1 minute')));
        $key = $this->prefix . $event->mutexName() . '1234';
        self::assertLasts(3600.0, $this->client()->inspect($key)->remaining);
    }

    public function testJobsOfOneKeyExcludeEachOther(): void
    {
        $work = function (WithoutOverlapping $through): array {
            $did = [];
            Job::$does = function () use (&$did): void {
                $did[] = 'work';
            };
            work($this->app, new Job([$through]));
            return $did;
        };
        $name = "{$this->prefix}laravel-queue-overlap:" . Job::class . ':7';
        self::assertSame(['work'], $work(new WithoutOverlapping('7')));
        $holder = $this->client()->acquire($name);
        self::assertSame([], $work(new WithoutOverlapping('7')));
        self::assertSame([], $work((new WithoutOverlapping('7'))->dontRelease()));
        self::assertSame(['work'], $work(new WithoutOverlapping('8')));
        self::assertSame(['work'], $work((new WithoutOverlapping('7'))->shared()));
        $holder->release();
        self::assertSame(['work'], $work(new WithoutOverlapping('7')));
    }

    public function testTheLockOfAJobHasItsNameItsKeyAndThePrefix(): void
    {
        $job = new Job([]);
        self::assertSame('laravel-queue-overlap:' . Job::class . ':7', (new WithoutOverlapping(7))->getLockKey($job));
        $shared = (new WithoutOverlapping('7'))->withPrefix('mine:')->shared();
        self::assertSame('mine:shared:7', $shared->getLockKey($job));
        $key = (new WithoutOverlapping(Outcome::Unknown))->getLockKey($job);
        self::assertSame('laravel-queue-overlap:' . Job::class . ':' . Outcome::Unknown->name, $key);
    }

    public function testListenersOfOneClassOfJobsDoNotExcludeEachOther(): void
    {
        $through = new WithoutOverlapping('7');
        $name = fn (string $listener) => $through->getLockKey(new CallQueuedListener($listener, '', []));
        self::assertSame('laravel-queue-overlap:' . hash('xxh128', 'Bill') . ':7', $name('Bill'));
        self::assertNotSame($name('Bill'), $name('Ship'));
    }

    public function testAJobThatFindsTheLockHeldIsReleasedToTheQueue(): void
    {
        $released = [];
        $job = new class ($released) {
            public function __construct(private array &$released)
            {
            }

            public function release($delay): void
            {
                $this->released[] = $delay;
            }
        };
        $holder = $this->client()->acquire("{$this->prefix}laravel-queue-overlap:shared:7");
        $next = fn () => self::fail('the job is done');
        (new WithoutOverlapping('7'))->shared()->releaseAfter(30)->handle($job, $next);
        (new WithoutOverlapping('7'))->shared()->dontRelease()->handle($job, $next);
        self::assertSame([30], $released);
        $holder->release();
    }

    public function testTheLockOfAJobEndsWithTheJobOrAfterTheSecondsThatItGot(): void
    {
        $name = "{$this->prefix}laravel-queue-overlap:" . Job::class . ':7';
        $held = [];
        Job::$does = function () use (&$held, $name): void {
            $held[] = $this->client()->inspect($name)->isHeld;
            throw new \Exception('of the job');
        };
        $this->thrown(\Exception::class, fn () => work($this->app, new Job([new WithoutOverlapping('7')])));
        $held[] = $this->client()->inspect($name)->isHeld;
        Job::$does = fn () => self::eventually(fn () => !$this->client()->inspect($name)->isHeld);
        work($this->app, new Job([(new WithoutOverlapping('7'))->expireAfter(1)]));
        self::assertSame([true, false], $held);
    }

    public function testAKilledWorkerFreesTheLockOfItsJob(): void
    {
        [$process, $output] = $this->runs('S\Job::$does = function () { echo "at work\n"; sleep(60); };
            S\work($app, new S\Job([new Lockkeeper\Laravel\WithoutOverlapping("7", ttl: 3600)]));');
        self::assertSame("at work\n", fgets($output));
        $name = "{$this->prefix}laravel-queue-overlap:" . Job::class . ':7';
        self::assertTrue($this->client()->inspect($name)->isHeld);
        posix_kill(proc_get_status($process)['pid'], SIGKILL);
        proc_close($process);
        self::eventually(fn () => !$this->client()->inspect($name)->isHeld);
    }

    public function testAUniqueJobIsInTheQueueOnceAndFreedByItsWorkerWithoutThePermissionToForceIt(): void
    {
        UniqueJob::$via = function (): Repository {
            $client = $this->client(apiKey: self::env('PLAIN_API_KEY'));
            $locks = new LockkeeperCacheStore($client, new ArrayStore(), $this->prefix, 'unique jobs');
            return new Repository($locks);
        };
        $isQueued = fn () => (new UniqueLock(new Repository(new ArrayStore())))->acquire(new UniqueJob('7'));
        $held = [];
        Job::$does = function () use (&$held, $isQueued): void {
            $held[] = $isQueued();
        };
        self::assertSame([true, false], [$isQueued(), $isQueued()]);
        work($this->app, new UniqueJob('7'));
        self::assertSame([[false], []], [$held, $this->warnings]);
        self::assertTrue($isQueued());
        Job::$does = fn () => throw new \Exception('of the job');
        $this->thrown(\Exception::class, fn () => work($this->app, new UniqueJob('7')));
        self::assertTrue($isQueued());
        [$look] = iterator_to_array($this->client()->list("{$this->prefix}laravel_unique_job:"), false);
        self::assertLasts(3600.0, $look->remaining);
        $other = new LockkeeperCacheStore($this->client(), new ArrayStore(), $this->prefix, 'other jobs');
        self::assertFalse($other->lock(substr($look->key, strlen($this->prefix)))->release());
    }

    /** @return array{resource, resource} */
    private function runs(string $code, string ...$more): array
    {
        return self::start(self::APP . $code, $this->prefix, self::env('PLAIN_API_KEY'), ...$more);
    }

    private function isHeld(Event $event): bool
    {
        return $this->client()->inspect($this->prefix . $event->mutexName())->isHeld;
    }

    /** The same task of another process. */
    private function onAnotherServer(string $name, array &$ran): Schedule
    {
        $app = application($this->prefix, self::env('PLAIN_API_KEY'));
        $schedule = new Schedule();
        $schedule->call(function () use (&$ran): void {
            $ran[] = 'another';
        })->name($name)->withoutOverlapping();
        Container::setInstance($this->app);
        unset($app);
        return $schedule;
    }
}
