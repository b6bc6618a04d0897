<?php

declare(strict_types=1);

namespace Lockkeeper\Tests;

use Lockkeeper\Exception\LockBusy;
use Lockkeeper\Exception\LockLost;
use Lockkeeper\Exception\RequestRefused;
use Lockkeeper\Exception\ServiceUnavailable;
use Lockkeeper\Lease;
use Lockkeeper\SharedLease;

/** Leases that share a key: semaphores, pools, readers and writers. */
final class ShareTest extends TestCase
{
    public function testASemaphoreHasAsManyHoldersAsItsLeasesAllow(): void
    {
        $client = $this->client(owner: 'web-7');
        $key = self::key();
        $leases = array_map(fn () => $client->acquire($key, 20, slots: 3), range(1, 3));
        self::assertSame([[3, 1], [3, 2], [3, 3]], array_map(self::share(...), $leases));
        $busy = $this->thrown(LockBusy::class, fn () => $client->acquire($key, slots: 3));
        self::assertSame([$key, 3, 3, false], [$busy->key, $busy->holders, $busy->slots, $busy->isMine]);
        self::assertSame('web-7', $busy->owner);
        self::assertLasts(20.0, $busy->retryAfter);
        self::assertNull($client->tryAcquire($key, slots: 5));
        self::assertNull($client->tryAcquire($key, shared: true));
        $leases[1]->refresh(40);
        self::assertLasts(40.0, $leases[1]->remaining());
        self::assertTrue($leases[1]->release());
        self::assertSame([3, 2], self::share($next = $client->tryAcquire($key, slots: 3)));
        self::assertGreaterThan($leases[2]->fencingToken(), $next->fencingToken());
        self::assertSame(['slots' => 3, 'slot' => 2], array_slice($next->__debugInfo(), -2));
    }

    public function testALeaseTakesSeveralUnitsAndKeepsThem(): void
    {
        $client = $this->client();
        $key = self::key();
        $units = fn (): array => array_map(fn ($one) => $one->slots, $client->inspect($key)->leases);
        $lease = $client->acquire($key, 20, slots: 8, units: 5);
        self::assertSame([8, null], self::share($lease));
        $this->thrown(LockBusy::class, fn () => $client->acquire($key, slots: 8, units: 4));
        self::assertNull($client->tryHold($key, slots: 8, units: 4));
        $busy = $this->thrown(LockBusy::class, fn () => $client->hold($key));
        self::assertSame([1, 8], [$busy->holders, $busy->slots]);
        $resumed = $client->resume($key, $lease->handOver());
        self::assertSame([8, null], self::share($resumed));
        $resumed->refresh(30);
        self::assertSame([8], $units());
        self::assertSame('ran', $client->withLock($key, fn () => 'ran', slots: 8, units: 3));
        $this->thrown(LockBusy::class, fn () => $client->acquireAll([$key], slots: 8, units: 4));
        self::assertTrue($resumed->release());
        foreach ([['units' => 2], ['slots' => 2, 'units' => 3]] as $share) {
            $this->thrown(RequestRefused::class, fn () => $client->acquire($key, ...$share));
        }
    }

    public function testALowerLimitHoldsAtOnceAndAHigherOneBehindIt(): void
    {
        $key = self::key();
        $old = $this->client()->acquire($key, slots: 5);
        $new = $this->client()->acquire($key, slots: 2);
        $busy = $this->thrown(LockBusy::class, fn () => $this->client()->acquire($key, slots: 5));
        self::assertSame([2, 2], [$busy->holders, $busy->slots]);
        self::assertTrue($new->release());
        self::assertSame([5, 2], self::share($this->client()->acquire($key, slots: 5)));
        self::assertTrue($old->release());
    }

    public function testReadersShareAKeyAndAWriterIsAlone(): void
    {
        $key = self::key();
        $readers = array_map(fn () => $this->client()->acquire($key, shared: true), range(1, 3));
        self::assertSame([1000, null], self::share($readers[0]));
        $busy = $this->thrown(LockBusy::class, fn () => $this->client()->acquire($key));
        self::assertSame([3, 1000, false], [$busy->holders, $busy->slots, $busy->isMine]);
        foreach ($readers as $reader) {
            self::assertTrue($reader->release());
        }
        $writer = $this->client()->acquire($key);
        self::assertSame([null, null], self::share($writer));
        $busy = $this->thrown(LockBusy::class, fn () => $this->client()->acquire($key, shared: true));
        self::assertSame([null, null, false], [$busy->holders, $busy->slots, $busy->isMine]);
        self::assertTrue($writer->release());
        $shares = fn (Lease $lease): array => [...self::share($lease), $this->client()->tryAcquire($key)];
        self::assertSame([1000, null, null], $this->client()->withLock($key, $shares, shared: true));
        self::assertSame([2, 1, null], $this->client()->withLock($key, $shares, slots: 2));
        self::assertSame([null, null, null], $this->client()->withLock($key, $shares, slots: 1));
        self::assertFalse($this->client()->inspect($key)->isHeld);
    }

    public function testAWriterWaitsForAllReadersAndLaterReadersBehindIt(): void
    {
        $key = self::key();
        $client = $this->client(self::env('PATIENT_URL'));
        $reader = $client->acquire($key, shared: true);
        $code = '$client = new Lockkeeper\LockClient(getenv("LOCKKEEPER_PATIENT_URL"), getenv("LOCKKEEPER_API_KEY"));
            $lease = $client->acquire($arguments[0], wait: INF, shared: $arguments[1] === "shared");
            echo microtime(true); // Before the lease ends with its variable.';
        [$writer, $written] = self::start($code, $key, 'exclusive');
        self::eventually(fn () => $client->inspect($key)->waiters === 1);
        self::assertNull($client->tryAcquire($key, shared: true));
        [$later, $read] = self::start($code, $key, 'shared');
        self::eventually(fn () => $client->inspect($key)->waiters === 2);
        self::assertTrue($reader->release());
        self::assertLessThan((float) stream_get_contents($read), (float) stream_get_contents($written));
        self::assertSame([0, 0], [proc_close($writer), proc_close($later)]);
    }

    public function testALookTellsWhoSharesAKey(): void
    {
        $key = self::key();
        [$one, $two] = array_map(fn ($name) => $this->client(owner: $name), ['one', 'two']);
        $first = $one->acquire($key, 20, slots: 5);
        $reader = $two->acquire($key, 40, shared: true);
        $look = $one->inspect($key);
        self::assertSame([true, null, null, 2, 5], [
            $look->isHeld, $look->owner, $look->fencingToken, $look->holders, $look->slots,
        ]);
        self::assertLasts(40.0, $look->remaining);
        $told = fn (SharedLease $lease) => [$lease->owner, $lease->fencingToken, $lease->slots, $lease->slot];
        $expected = [['one', $first->fencingToken(), 5, 1], ['two', $reader->fencingToken(), 1000, null]];
        self::assertSame($expected, array_map($told, $look->leases));
        self::assertLasts(20.0, $look->leases[0]->remaining);
        self::assertLasts(40.0, $look->leases[1]->remaining);
        self::assertGreaterThanOrEqual(0.0, $look->leases[1]->heldFor);
        $listed = iterator_to_array($one->list(dirname($key) . '/'), false)[0];
        self::assertSame([2, 5, null], [$listed->holders, $listed->slots, $listed->leases]);
        $alone = $one->acquire(self::key());
        $look = $one->inspect($alone->key());
        self::assertSame([null, null, null], [$look->holders, $look->slots, $look->leases]);
    }

    public function testALeaseThatIsHandedOverKeepsItsSlot(): void
    {
        $key = self::key();
        $client = $this->client();
        $all = [$client->acquire($key, 20, slots: 5), $client->acquire($key, 40, slots: 4)];
        $reader = $client->acquire($key, 30, shared: true);
        $number = $all[1]->fencingToken();
        $resumed = $client->resume($key, $all[1]->handOver());
        self::assertSame([$number, 4, 2], [$resumed->fencingToken(), ...self::share($resumed)]);
        self::assertLasts(40.0, $resumed->remaining());
        self::assertSame([1000, null], self::share($client->resume($key, $reader->handOver())));
        $alone = $client->acquire($other = self::key());
        self::assertSame([null, null], self::share($client->resume($other, $alone->handOver())));
    }

    public function testALeaseThatIsHeldHasASlotToo(): void
    {
        $key = self::key();
        $client = $this->client();
        $first = $client->hold($key, slots: 2);
        $second = $client->tryHold($key, slots: 2);
        self::assertSame([[2, 1], [2, 2]], array_map(self::share(...), [$first, $second]));
        self::assertNull($client->tryHold($key, slots: 2));
        self::assertTrue($first->release());
        self::assertSame([1000, null], self::share($client->tryHold($key, shared: true)));
        self::assertTrue($second->isHeld());
        self::assertTrue($client->forceRelease($key));
        $this->thrown(LockLost::class, function () use ($second): void {
            self::eventually(fn () => $second->check() ?? false);
        });
    }

    public function testSeveralKeysAreShared(): void
    {
        $keys = [self::key(), self::key()];
        $client = $this->client();
        $readers = [$client->acquireAll($keys, shared: true), $client->acquireAll($keys, shared: true)];
        self::assertSame([1000, null], self::share($readers[1]->lease($keys[0])));
        $this->thrown(LockBusy::class, fn () => $client->acquireAll($keys));
        self::assertSame([true, true], [$readers[0]->release(), $readers[1]->release()]);
        $leases = $client->acquireAll($keys, slots: 2);
        self::assertSame([2, 1], self::share($leases->lease($keys[1])));
    }

    public function testAnAnswerThatWasLostCostsNoSlot(): void
    {
        $key = self::key();
        $proxy = self::faults('lose');
        $lease = $this->client($proxy->url)->acquire($key, slots: 2);
        self::assertSame([2, 1], self::share($lease));
        self::assertSame(1, $this->client()->inspect($key)->holders);
        $proxy = self::faults('lose', 'cut');
        $client = $this->client($proxy->url, patience: 0.0);
        $this->thrown(ServiceUnavailable::class, fn () => $client->acquire($key, slots: 2));
        self::assertSame(1, $this->client()->inspect($key)->holders);
    }

    public function testProcessesAreNeverMoreThanTheSlots(): void
    {
        $directory = sys_get_temp_dir() . '/' . bin2hex(random_bytes(8));
        mkdir($directory);
        // Each slot is a file that its holder alone may have.
        $code = '[$key, $directory] = $arguments;
            for ($i = 0; $i < 15; $i++) {
                $client->withLock($key, function ($lease) use ($directory) {
                    fopen("$directory/$lease->slot", "x") ?: throw new Exception("the slot is taken");
                    usleep(2000);
                    unlink("$directory/$lease->slot");
                }, 10, INF, slots: 2);
            }
            echo "done";';
        $key = self::key();
        $workers = array_map(fn () => self::start($code, $key, $directory), range(1, 4));
        $codes = array_map(fn ($worker) => [stream_get_contents($worker[1]), proc_close($worker[0])], $workers);
        self::assertSame(array_fill(0, 4, ['done', 0]), $codes);
        rmdir($directory);
    }

    public function testABadShareIsRefused(): void
    {
        $client = $this->client('http://127.0.0.1:1');
        $both = ['slots' => 5, 'shared' => true];
        $calls = [
            fn () => $client->acquire('key', ...$both),
            fn () => $client->tryAcquire('key', ...$both),
            fn () => $client->withLock('key', fn () => null, ...$both),
            fn () => $client->hold('key', ...$both),
            fn () => $client->tryHold('key', ...$both),
            fn () => $client->acquireAll(['key'], ...$both),
        ];
        foreach ($calls as $call) {
            $this->thrown(\InvalidArgumentException::class, $call);
        }
        foreach ([0, -1, 1001] as $slots) {
            $acquire = fn () => $this->client()->acquire(self::key(), slots: $slots);
            $refused = $this->thrown(RequestRefused::class, $acquire);
            self::assertSame([400, 'slots'], [$refused->status, $refused->field]);
        }
    }

    /** @return array{?int, ?int} */
    private static function share(object $lease): array
    {
        return [$lease->slots, $lease->slot];
    }
}
