<?php

declare(strict_types=1);

namespace Lockkeeper\Tests;

use Lockkeeper\Exception\LockBusy;
use Lockkeeper\Symfony\LockkeeperStore;
use PHPUnit\Framework\Attributes\DataProvider;
use Symfony\Component\Lock\Exception\LockAcquiringException;
use Symfony\Component\Lock\Exception\LockConflictedException;
use Symfony\Component\Lock\Key;
use Symfony\Component\Lock\LockFactory;

/** Read locks of Symfony. */
final class SymfonySharedTest extends TestCase
{
    public function testReadersAreTogetherAndAWriterIsAlone(): void
    {
        $name = self::key();
        [$one, $two, $writer] = array_map(fn () => $this->factory()->createLock($name, 20), range(1, 3));
        self::assertTrue($one->acquireRead());
        self::assertTrue($two->acquireRead());
        self::assertLasts(20.0, $two->getRemainingLifetime());
        self::assertFalse($writer->acquire());
        self::assertSame([true, true, false], array_map(fn ($lock) => $lock->isAcquired(), [$one, $two, $writer]));
        $one->release();
        self::assertFalse($writer->acquire());
        unset($two); // released with its object
        self::assertTrue($writer->acquire());
        self::assertFalse($one->acquireRead());
        self::assertSame([false, true], [$one->isAcquired(), $writer->isAcquired()]);
        $writer->release();
        self::assertTrue($one->acquireRead());
        $one->refresh(60);
        self::assertLasts(60.0, $one->getRemainingLifetime());
        self::assertSame(1, $this->client()->inspect($name)->holders);
    }

    public function testAWriterWaitsForReadersAndLaterReadersBehindIt(): void
    {
        $name = self::key();
        $client = $this->client(self::env('PATIENT_URL'));
        $factory = new LockFactory(new LockkeeperStore($client));
        $reader = $factory->createLock($name, 20);
        $reader->acquireRead();
        $code = '
            $client = new Lockkeeper\LockClient(getenv("LOCKKEEPER_PATIENT_URL"), getenv("LOCKKEEPER_API_KEY"));
            $store = new Lockkeeper\Symfony\LockkeeperStore($client);
            $lock = (new Symfony\Component\Lock\LockFactory($store))->createLock($arguments[0], 20);
            $lock->{$arguments[1]}(true);
            echo microtime(true);';
        [$writer, $written] = self::start($code, $name, 'acquire');
        self::eventually(fn () => $client->inspect($name)->waiters === 1);
        self::assertFalse($factory->createLock($name)->acquireRead());
        [$later, $read] = self::start($code, $name, 'acquireRead');
        self::eventually(fn () => $client->inspect($name)->waiters === 2);
        $reader->release();
        self::assertLessThan((float) stream_get_contents($read), (float) stream_get_contents($written));
        self::assertSame([0, 0], [proc_close($writer), proc_close($later)]);
        $this->client()->acquire($name)->handOver();
        $began = microtime(true);
        $bounded = $this->factory(maxWait: 0.5)->createLock($name);
        $this->thrown(LockConflictedException::class, fn () => $bounded->acquireRead(true));
        self::assertTook(0.5, $began);
    }

    public function testAReadLockBecomesAWriteLockWhereNobodyElseReads(): void
    {
        $name = self::key();
        $lock = $this->factory()->createLock($name, 20);
        self::assertTrue($lock->acquireRead());
        $number = $this->client()->inspect($name)->leases[0]->fencingToken;
        self::assertTrue($lock->acquire());
        $look = $this->client()->inspect($name);
        self::assertSame([true, null], [$look->fencingToken > $number, $look->holders]);
        self::assertFalse($this->factory()->createLock($name)->acquireRead());
        $lock->refresh(60);
        self::assertLasts(60.0, $this->client()->inspect($name)->remaining);
        self::assertTrue($lock->acquire());
        $lock->release();
        self::assertFalse($this->client()->inspect($name)->isHeld);
    }

    public function testAPromotionWhoseAnswerIsLostIsRepeated(): void
    {
        $proxy = self::faults('pass', 'pass', 'lose');
        $store = new LockkeeperStore($this->client($proxy->url));
        $store->saveRead($key = new Key($name = self::key()));
        $store->save($key);
        self::assertSame([true, null], [$store->exists($key), $this->client()->inspect($name)->holders]);
        $store->putOffExpiration($key, 400);
        $store->delete($key);
        self::assertFalse($this->client()->inspect($name)->isHeld);
    }

    public function testAPromotionWithoutAnAnswerGivesTheReadLockUp(): void
    {
        foreach ([['lose', 'lose'], ['cut', 'cut'], ['not-acquired']] as $faults) {
            $proxy = self::faults('pass', 'pass', ...$faults);
            $store = new LockkeeperStore($this->client($proxy->url, patience: 0.0));
            $store->saveRead($key = new Key($name = self::key()));
            $lock = (new LockFactory($store))->createLockFromKey($key, null, false);
            $this->thrown(LockAcquiringException::class, fn () => $lock->acquire());
            self::assertSame([true, false], [$lock->isExpired(), $lock->isAcquired()]);
            self::assertFalse($this->client()->inspect($name)->isHeld);
            self::assertTrue($lock->acquire());
        }
    }

    public function testAPromotionThatIsRefusedBehindALostAnswerGivesTheReadLockUp(): void
    {
        $reader = $this->client()->acquire($name = self::key(), shared: true);
        $proxy = self::faults('pass', 'pass', 'cut');
        $store = new LockkeeperStore($this->client($proxy->url));
        $store->saveRead($key = new Key($name));
        $this->thrown(LockConflictedException::class, fn () => $store->save($key));
        // The request without an answer may replace it as soon as the other reader has gone.
        self::assertSame([true, false], [$key->isExpired(), $store->exists($key)]);
        self::assertSame(1, $this->client()->inspect($name)->holders);
        self::assertTrue($reader->release());
    }

    public function testAPromotionThatCertainlyDidNotHappenLeavesTheReadLock(): void
    {
        $proxy = self::faults('pass', 'pass', 'unauthenticated');
        $store = new LockkeeperStore($this->client($proxy->url));
        $store->saveRead($key = new Key($name = self::key()));
        $this->thrown(LockAcquiringException::class, fn () => $store->save($key));
        self::assertSame([true, 1], [$store->exists($key), $this->client()->inspect($name)->holders]);
        self::assertLasts(300.0, $key->getRemainingLifetime());
    }

    /** @dataProvider waits */
    #[DataProvider('waits')]
    public function testARefusedPromotionConflictsAtOnceAndTheReadLockStays(bool $waits): void
    {
        $name = self::key();
        $other = $this->factory()->createLock($name, 60);
        $other->acquireRead();
        $store = new LockkeeperStore($this->client(), maxWait: 30);
        $store->saveRead($key = new Key($name));
        $store->putOffExpiration($key, 40);
        $key->resetLifetime();
        $began = microtime(true);
        $save = fn () => $waits ? $store->waitAndSave($key) : $store->save($key);
        $conflict = $this->thrown(LockConflictedException::class, $save);
        self::assertTook(0.0, $began);
        self::assertInstanceOf(LockBusy::class, $conflict->getPrevious());
        self::assertSame([true, 2], [$conflict->getPrevious()->isMine, $conflict->getPrevious()->holders]);
        self::assertTrue($store->exists($key));
        self::assertLasts(40.0, $key->getRemainingLifetime());
        $store->putOffExpiration($key, 50);
        self::assertSame([true, 2], [$other->isAcquired(), $this->client()->inspect($name)->holders]);
        $other->release();
        $store->save($key);
        self::assertNull($this->client()->inspect($name)->holders);
        $store->delete($key);
        self::assertFalse($this->client()->inspect($name)->isHeld);
    }

    public static function waits(): array
    {
        return ['acquire' => [false], 'acquire and wait' => [true]];
    }

    public function testAWriteLockBecomesAReadLockAndLetsReadersIn(): void
    {
        $name = self::key();
        $lock = $this->factory()->createLock($name, 20);
        $lock->acquire();
        $number = $this->client()->inspect($name)->fencingToken;
        self::assertTrue($lock->acquireRead());
        self::assertTrue($this->factory()->createLock($name, 20, false)->acquireRead());
        $look = $this->client()->inspect($name);
        self::assertSame(2, $look->holders);
        self::assertGreaterThan($number, min(array_map(fn ($lease) => $lease->fencingToken, $look->leases)));
        self::assertFalse($lock->acquire());
        self::assertTrue($lock->isAcquired());
        $lock->release();
        self::assertSame(1, $this->client()->inspect($name)->holders);
    }

    public function testACopyOfAKeyWhoseLockBecameAReadLockIsExclusiveAgainWhenItIsSaved(): void
    {
        $name = self::key();
        $store = new LockkeeperStore($this->client());
        $store->save($key = new Key($name));
        $copy = unserialize(serialize($key));
        $store->saveRead($copy);
        $store->save($key); // does not know of it
        self::assertNull($this->client()->inspect($name)->holders);
        $store->saveRead($copy = unserialize(serialize($key)));
        $reader = $this->client()->acquire($name, shared: true);
        $key->resetLifetime();
        $this->thrown(LockConflictedException::class, fn () => $store->save($key));
        self::assertSame([true, 2], [$store->exists($key), $this->client()->inspect($name)->holders]);
        self::assertLasts(300.0, $key->getRemainingLifetime());
        $reader->release();
        $store->save($copy);
        self::assertNull($this->client()->inspect($name)->holders);
    }

    public function testAReadLockOfAServiceWithExclusiveLeasesOnlyIsExclusive(): void
    {
        $proxy = self::faults(...array_fill(0, 20, 'exclusive'));
        $factory = new LockFactory(new LockkeeperStore($this->client($proxy->url)));
        $name = self::key();
        [$one, $two] = array_map(fn () => $factory->createLock($name, 20, false), range(1, 2));
        self::assertTrue($one->acquireRead());
        self::assertFalse($two->acquireRead());
        self::assertTrue($one->acquireRead());
        self::assertTrue($one->acquire());
        self::assertNull($this->client()->inspect($name)->holders);
        $one->release();
        self::assertTrue($two->acquireRead(true));
    }

    public function testAnAcquireReadThatFailsGivesBackWhatItMayHaveBeenGranted(): void
    {
        $proxy = self::faults('lose', 'lose', 'pass');
        $factory = new LockFactory(new LockkeeperStore($this->client($proxy->url, patience: 0.01)));
        $lock = $factory->createLock($name = self::key(), 20, false);
        $this->thrown(LockAcquiringException::class, fn () => $lock->acquireRead());
        self::assertFalse($this->client()->inspect($name)->isHeld);
    }

    private function factory(mixed ...$options): LockFactory
    {
        return new LockFactory(new LockkeeperStore($this->client(), ...$options));
    }
}
