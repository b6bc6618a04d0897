<?php

declare(strict_types=1);

namespace Lockkeeper\Tests;

use Lockkeeper\Symfony\LockkeeperStore;
use PHPUnit\Framework\Attributes\DataProvider;
use Symfony\Component\Lock\Exception\InvalidTtlException;
use Symfony\Component\Lock\Exception\LockAcquiringException;
use Symfony\Component\Lock\Exception\LockConflictedException;
use Symfony\Component\Lock\Exception\LockExpiredException;
use Symfony\Component\Lock\Exception\LockReleasingException;
use Symfony\Component\Lock\Exception\LockStorageException;
use Symfony\Component\Lock\Key;
use Symfony\Component\Lock\LockFactory;
use Symfony\Component\Lock\Store\CombinedStore;
use Symfony\Component\Lock\Strategy\UnanimousStrategy;

final class SymfonyTest extends TestCase
{
    public function testALockIsHeldUntilItIsReleased(): void
    {
        $name = self::key();
        $lock = $this->factory()->createLock($name, 5);
        $other = $this->factory()->createLock($name, 5);
        self::assertTrue($lock->acquire());
        self::assertTrue($lock->acquire());
        self::assertLasts(5.0, $lock->getRemainingLifetime());
        self::assertFalse($other->acquire());
        self::assertSame([true, false], [$lock->isAcquired(), $other->isAcquired()]);
        $other->release();
        self::assertTrue($lock->isAcquired());
        $lock->refresh(60);
        self::assertLasts(60.0, $lock->getRemainingLifetime());
        self::assertLasts(60.0, $this->client()->inspect($name)->remaining);
        $lock->release();
        self::assertFalse($lock->isAcquired());
        self::assertTrue($other->acquire());
    }

    public function testALockEndsWithItsObjectUnlessItIsToldNotTo(): void
    {
        foreach ([true, false] as $autoRelease) {
            $lock = $this->factory()->createLock($name = self::key(), 30, $autoRelease);
            $lock->acquire();
            unset($lock);
            self::assertSame(!$autoRelease, $this->client()->inspect($name)->isHeld);
        }
    }

    public function testABlockingClientWaitsInLineAtTheService(): void
    {
        $name = self::key();
        $began = microtime(true);
        $this->factory()->createLock($name, 1.2, false)->acquire();
        $waiting = $this->factory()->createLock($name, 5);
        self::assertTrue($waiting->acquire(true));
        self::assertTook(1.2, $began);
        $began = microtime(true);
        $bounded = $this->factory(maxWait: 0.5)->createLock($name);
        $this->thrown(LockConflictedException::class, fn () => $bounded->acquire(true));
        self::assertTook(0.5, $began);
    }

    public function testALockWithoutATtlHasTheInitialOne(): void
    {
        $lasts = function (float $initialTtl): float {
            $lock = $this->factory(initialTtl: $initialTtl)->createLock($name = self::key(), null);
            $lock->acquire();
            $this->assertNoMoreRemains($name, fn () => $lock->getRemainingLifetime());
            return $lock->getRemainingLifetime();
        };
        self::assertLasts(300.0, $lasts(300));
        self::assertLasts(3600.0, $lasts(INF));
        $this->thrown(InvalidTtlException::class, fn () => $this->factory(initialTtl: 0));
    }

    public function testALockThatIsLostConflicts(): void
    {
        $lock = $this->factory()->createLock($name = self::key(), 2);
        $lock->acquire();
        self::eventually(fn () => $lock->isExpired());
        self::eventually(fn () => !$lock->isAcquired());
        $this->thrown(LockConflictedException::class, fn () => $lock->refresh());
        $thief = $this->client()->acquire($name);
        $this->thrown(LockConflictedException::class, fn () => $lock->refresh());
        $lock->release();
        self::assertTrue($thief->release());
        self::assertTrue($lock->acquire());
    }

    public function testASerialisedKeyIsTheLockElsewhere(): void
    {
        $key = new Key($name = self::key());
        $lock = $this->factory()->createLockFromKey($key, 60, false);
        $lock->acquire();
        $code = '$store = new Lockkeeper\Symfony\LockkeeperStore($client);
            $key = unserialize(base64_decode($arguments[0]));
            $lock = (new Symfony\Component\Lock\LockFactory($store))->createLockFromKey($key, 60);
            $mine = $lock->isAcquired(); $lock->refresh(); $lock->release();
            echo json_encode([$mine, $lock->isAcquired(), $client->inspect((string) $key)->isHeld]);';
        self::assertSame([0, '[true,false,false]'], self::script($code, base64_encode(serialize($key))));
        self::assertFalse($lock->isAcquired());
    }

    /** @dataProvider names */
    #[DataProvider('names')]
    public function testAResourceMayBeAnything(string $name, bool $isHashed): void
    {
        $prefix = self::key('');
        $store = new LockkeeperStore($this->client(), prefix: $prefix);
        $lock = (new LockFactory($store))->createLock($name, 5);
        self::assertTrue($lock->acquire());
        $same = (new LockFactory(new LockkeeperStore($this->client(), prefix: $prefix)))->createLock($name, 5);
        self::assertFalse($same->acquire());
        $lock->refresh();
        self::assertTrue($lock->isAcquired());
        $held = iterator_to_array($this->client()->list($prefix), false);
        self::assertSame($prefix . ($isHashed ? 'hashed/' . hash('sha256', $name) : $name), $held[0]->key);
        $lock->release();
        self::assertTrue($same->acquire());
    }

    public static function names(): array
    {
        $fit = ['invoice/42', 'App\Job:7', 'Zürich ☃', '%2F', 'refresh/a', 'a b+c', str_repeat('a', 400)];
        $unfit = ['', '/', 'a//b', 'a/', '../a', 'a/./b', "line\nfeed", "\0", "\xff\xfe", "\u{85}"];
        $unfit = [...$unfit, 'refresh', 'a/refresh', str_repeat('ü', 300)];
        $named = fn (bool $isHashed) => fn ($name) => [$name, $isHashed];
        return [...array_map($named(false), $fit), ...array_map($named(true), $unfit)];
    }

    public function testAServiceThatIsAwayIsNoConflict(): void
    {
        $store = new LockkeeperStore($this->client('http://127.0.0.1:1', patience: 0.1));
        $key = new Key(self::key());
        $lock = (new LockFactory($store))->createLockFromKey($key, 5, false);
        $failure = $this->thrown(LockAcquiringException::class, fn () => $lock->acquire());
        self::assertStringContainsString('no answer from http://127.0.0.1:1', $failure->getPrevious()->getMessage());
        $this->thrown(LockAcquiringException::class, fn () => $lock->acquire(true));
        $this->factory()->createLockFromKey($key, 5, false)->acquire();
        $this->thrown(LockAcquiringException::class, fn () => $lock->refresh());
        $this->thrown(LockStorageException::class, fn () => $lock->isAcquired());
        $this->thrown(LockStorageException::class, fn () => $store->putOffExpiration($key, 5));
        $this->thrown(LockReleasingException::class, fn () => $lock->release());
    }

    public function testALockThatMayNotBeRefreshedEndsWhenItWouldHave(): void
    {
        $proxy = self::faults('pass', 'pass', ...array_fill(0, 9, 'cut'));
        $client = $this->client($proxy->url, patience: 0.1);
        $lock = (new LockFactory(new LockkeeperStore($client)))->createLock(self::key(), 20, false);
        $lock->acquire();
        $this->thrown(LockAcquiringException::class, fn () => $lock->refresh(60));
        self::assertLasts(20.0, $lock->getRemainingLifetime()); // and not for ever
    }

    public function testALockThatIsToEndEarlierIsReplaced(): void
    {
        $proxy = self::faults('pass', 'lose', 'pass', 'pass', 'unauthenticated', 'pass', 'lose', 'lose');
        $store = new LockkeeperStore($this->client($proxy->url, patience: 0.0));
        $lock = (new LockFactory($store))->createLockFromKey($key = new Key($name = self::key()), 20, false);
        $lock->acquire(); // for 300 seconds, and then for 20
        $number = $this->client()->inspect($name)->fencingToken;
        self::assertLasts(20.0, $this->client()->inspect($name)->remaining);
        self::assertCount(3, preg_grep('/POST .*"fencing_token":/', $proxy->requests()));
        $this->thrown(LockAcquiringException::class, fn () => $lock->refresh(5));
        self::assertLasts(5.0, $lock->getRemainingLifetime());
        self::assertTrue($lock->isAcquired()); // It was refused.
        self::assertSame($number, $this->client()->inspect($name)->fencingToken);
        $this->thrown(LockAcquiringException::class, fn () => $lock->refresh(5));
        self::assertSame([true, false], [$lock->isExpired(), $lock->isAcquired()]);
        self::assertFalse($this->client()->inspect($name)->isHeld);
    }

    public function testACopyOfAKeyKnowsOfAReplacedLease(): void
    {
        $store = new LockkeeperStore($this->client());
        $store->save($key = new Key($name = self::key()));
        [$refreshed, $shortened, $deleted] = array_map(fn () => unserialize(serialize($key)), range(1, 3));
        $store->putOffExpiration($key, 20);
        $store->putOffExpiration($refreshed, 400);
        self::assertLasts(400.0, $this->client()->inspect($name)->remaining);
        $store->putOffExpiration($shortened, 30);
        self::assertLasts(30.0, $this->client()->inspect($name)->remaining);
        $store->delete($deleted);
        self::assertFalse($this->client()->inspect($name)->isHeld);
    }

    public function testAnotherAcquireThatFailsEndsNothingAndPromisesNothing(): void
    {
        $proxy = self::faults('pass', 'pass', ...array_fill(0, 9, 'lose'));
        $client = $this->client($proxy->url, patience: 0.1);
        $lock = (new LockFactory(new LockkeeperStore($client)))->createLock($name = self::key(), 20, false);
        $lock->acquire();
        $this->thrown(LockAcquiringException::class, fn () => $lock->acquire());
        self::assertSame([], preg_grep('/DELETE/', $proxy->requests()));
        self::assertTrue($this->client()->inspect($name)->isHeld);
        self::assertLasts(20.0, $lock->getRemainingLifetime());
        $this->client()->forceRelease($name);
    }

    public function testAnAcquireThatFailsGivesBackWhatItMayHaveBeenGranted(): void
    {
        $proxy = self::faults('lose', 'lose', 'pass');
        $client = $this->client($proxy->url, patience: 0.01);
        $lock = (new LockFactory(new LockkeeperStore($client)))->createLock($name = self::key(), 20, false);
        $this->thrown(LockAcquiringException::class, fn () => $lock->acquire());
        self::assertFalse($this->client()->inspect($name)->isHeld);
    }

    public function testAKeyWhoseLifetimeIsOverIsNotSaved(): void
    {
        $store = new LockkeeperStore($this->client());
        $key = new Key($name = self::key());
        $store->save($key);
        $key->reduceLifetime(0);
        $this->thrown(LockExpiredException::class, fn () => $store->save($key));
        self::assertFalse($this->client()->inspect($name)->isHeld);
        self::assertFalse($store->exists($key));
        $store->save(new Key($name));
    }

    public function testATtlThatIsTooShortHasExpired(): void
    {
        $store = new LockkeeperStore($this->client());
        $store->save($key = new Key($name = self::key()));
        $this->thrown(LockExpiredException::class, fn () => $store->putOffExpiration($key, 0.000001));
        self::assertSame([true, false], [$key->isExpired(), $this->client()->inspect($name)->isHeld]);
    }

    public function testATtlThatIsRefusedLeavesNothingHeld(): void
    {
        foreach ([86400.0, 0.01] as $ttl) {
            $lock = $this->factory()->createLock($name = self::key(), $ttl, false);
            $this->thrown(LockAcquiringException::class, fn () => $lock->acquire());
            self::assertFalse($this->client()->inspect($name)->isHeld);
        }
        $lock = $this->factory()->createLock($name = self::key(), 20, false);
        $lock->acquire();
        $this->thrown(LockAcquiringException::class, fn () => $lock->refresh(86400.0));
        self::assertTrue($this->client()->inspect($name)->isHeld);
        self::assertLasts(20.0, $lock->getRemainingLifetime());
    }

    public function testNothingIsRefreshedBehindARelease(): void
    {
        $proxy = self::faults('pass', 'pass', 'html', 'html');
        $store = new LockkeeperStore($this->client($proxy->url, patience: 0.01));
        $store->save($key = new Key(self::key()));
        $store->putOffExpiration($key, 20);
        $this->thrown(LockReleasingException::class, fn () => $store->delete($key));
        $this->thrown(LockConflictedException::class, fn () => $store->putOffExpiration($key, 20));
        self::assertTrue($key->isExpired());
        $key->resetLifetime();
        // A late release could end what the same token acquires now.
        $this->thrown(LockConflictedException::class, fn () => $store->save($key));
        $store->delete($key);
        $store->save($key);
        self::assertTrue($store->exists($key));
    }

    public function testAForkedChildHasNothingOfItsParentsLocks(): void
    {
        $code = '$factory = new Symfony\Component\Lock\LockFactory(new Lockkeeper\Symfony\LockkeeperStore($client));
            $lock = $factory->createLock($arguments[0], 30);
            $lock->acquire();
            $child = pcntl_fork();
            if ($child === 0) {
                try { $lock->refresh(); echo "refreshed"; } catch (Exception $e) { echo get_class($e), " "; }
                echo json_encode([$lock->isAcquired(), $lock->isExpired(), $lock->acquire()]), " ";
                $lock->release();
                exit;
            }
            pcntl_waitpid($child, $status);
            echo json_encode([$lock->isAcquired(), $lock->getRemainingLifetime() > 10]);';
        $conflict = LockConflictedException::class;
        self::assertSame([0, "$conflict [false,true,false] [true,true]"], self::script($code, self::key()));
    }

    public function testARequestNamesTheLeaseByItsFencingToken(): void
    {
        $proxy = self::faults();
        $lock = (new LockFactory(new LockkeeperStore($this->client($proxy->url))))->createLock(self::key(), 20);
        $lock->acquire();
        $lock->refresh();
        $lock->release();
        $named = '/(PUT|POST).*"fencing_token":\d|DELETE.*\?fencing_token=\d/';
        self::assertCount(3, preg_grep($named, $proxy->requests()));
    }

    public function testAKeyHasALeaseOfItsOwnInEachOfSeveralStores(): void
    {
        $store = fn ($name) => new LockkeeperStore($this->client(), prefix: self::key("$name/"));
        $stores = array_map($store, ['a', 'b']);
        $all = new CombinedStore($stores, new UnanimousStrategy());
        $lock = (new LockFactory($all))->createLock('report', 30);
        self::assertTrue($lock->acquire());
        $lock->refresh(60);
        self::assertLasts(60.0, $lock->getRemainingLifetime());
        self::assertTrue($lock->isAcquired());
        $lock->release();
        foreach ($stores as $store) {
            self::assertTrue((new LockFactory($store))->createLock('report', 30)->acquire());
        }
    }

    private function factory(mixed ...$options): LockFactory
    {
        return new LockFactory(new LockkeeperStore($this->client(), ...$options));
    }
}
