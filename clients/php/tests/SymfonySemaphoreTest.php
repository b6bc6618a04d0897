<?php

declare(strict_types=1);

namespace Lockkeeper\Tests;

use Lockkeeper\Symfony\LockkeeperSemaphoreStore;
use Symfony\Component\Semaphore\Exception\RuntimeException;
use Symfony\Component\Semaphore\Exception\SemaphoreAcquiringException;
use Symfony\Component\Semaphore\Exception\SemaphoreExpiredException;
use Symfony\Component\Semaphore\Exception\SemaphoreReleasingException;
use Symfony\Component\Semaphore\Key;
use Symfony\Component\Semaphore\SemaphoreFactory;

final class SymfonySemaphoreTest extends TestCase
{
    public function testAsManyAsTheLimitAreIn(): void
    {
        $name = self::key();
        $create = fn () => $this->factory()->createSemaphore($name, 2, 1, 20);
        [$one, $two, $three] = [$create(), $create(), $create()];
        self::assertSame([true, true, false], [$one->acquire(), $two->acquire(), $three->acquire()]);
        self::assertSame([true, true, false], [$one->isAcquired(), $two->isAcquired(), $three->isAcquired()]);
        self::assertTrue($one->acquire());
        self::assertSame(2, $this->client()->inspect($name)->holders);
        self::assertLasts(20.0, $two->getRemainingLifetime());
        $two->refresh(60);
        self::assertLasts(60.0, $two->getRemainingLifetime());
        self::assertLasts(60.0, $this->client()->inspect($name)->remaining);
        $two->refresh(5);
        self::assertLasts(5.0, $two->getRemainingLifetime());
        self::assertSame(2, $this->client()->inspect($name)->holders);
        $one->release();
        self::assertFalse($one->isAcquired());
        self::assertTrue($three->acquire());
        unset($two); // released with its object
        self::assertTrue($one->acquire());
    }

    public function testTheLeastLimitOfAllHoldersCounts(): void
    {
        $name = self::key();
        $old = $this->factory()->createSemaphore($name, 5);
        $new = $this->factory()->createSemaphore($name, 2);
        self::assertSame([true, true], [$old->acquire(), $new->acquire()]);
        self::assertFalse($this->factory()->createSemaphore($name, 5)->acquire());
        $new->release();
        self::assertTrue($this->factory()->createSemaphore($name, 5)->acquire());
    }

    public function testALimitOfOneIsExclusive(): void
    {
        $name = self::key();
        [$one, $two] = array_map(fn () => $this->factory()->createSemaphore($name, 1), range(1, 2));
        self::assertSame([true, false], [$one->acquire(), $two->acquire()]);
        $one->release();
        self::assertTrue($two->acquire());
    }

    public function testAWaiterIsInLineAtTheService(): void
    {
        $name = self::key();
        $began = microtime(true);
        $this->client()->acquire($name, 1.2, slots: 1)->handOver();
        self::assertTrue($this->factory(wait: 20)->createSemaphore($name, 2)->acquire());
        self::assertTook(1.2, $began);
        $this->client()->acquire($name = self::key())->handOver();
        $began = microtime(true);
        self::assertFalse($this->factory(wait: 0.5)->createSemaphore($name, 2)->acquire());
        self::assertTook(0.5, $began);
    }

    public function testAKeyWhoseLimitIsLoweredKeepsItsLeaseIfTheOthersAreTooMany(): void
    {
        $store = $this->store();
        $store->save($key = new Key($name = self::key(), 3), 20);
        $other = $this->client()->acquire($name, slots: 3);
        $lower = unserialize(str_replace('limit";i:3', 'limit";i:1', serialize($key)));
        self::assertSame(1, $lower->getLimit());
        $lower->resetLifetime();
        $this->thrown(SemaphoreAcquiringException::class, fn () => $store->save($lower, 60));
        self::assertTrue($store->exists($lower));
        self::assertLasts(20.0, $lower->getRemainingLifetime());
        self::assertTrue($other->release());
        $store->save($lower, 60);
        self::assertNull($this->client()->inspect($name)->holders);
    }

    public function testASemaphoreThatIsReplacedWithoutAnAnswerIsGivenBack(): void
    {
        foreach (['to end earlier' => [], 'with another limit' => ['pass']] as $why => $faults) {
            $proxy = self::faults('pass', ...$faults, ...['lose', 'lose']);
            $store = new LockkeeperSemaphoreStore($this->client($proxy->url, patience: 0.0));
            $store->save($key = new Key($name = self::key(), 3), 20);
            $lower = unserialize(str_replace('limit";i:3', 'limit";i:1', serialize($key)));
            $replace = fn () => $faults === [] ? $store->putOffExpiration($lower, 5) : $store->save($lower, 20);
            $this->thrown(RuntimeException::class, $replace);
            self::assertSame([true, false], [$lower->isExpired(), $this->client()->inspect($name)->isHeld], $why);
        }
    }

    public function testASemaphoreThatIsLostHasExpired(): void
    {
        $semaphore = $this->factory()->createSemaphore($name = self::key(), 1, 1, 20, false);
        $this->thrown(SemaphoreExpiredException::class, fn () => $semaphore->refresh());
        $semaphore->acquire();
        $this->client()->forceRelease($name);
        $this->thrown(SemaphoreExpiredException::class, fn () => $semaphore->refresh());
        self::assertSame([true, false], [$semaphore->isExpired(), $semaphore->isAcquired()]);
        $semaphore->release();
        self::assertTrue($semaphore->acquire());
    }

    public function testASerialisedKeyIsTheSemaphoreElsewhere(): void
    {
        $key = new Key($name = self::key(), 1);
        $this->store()->save($key, 60);
        $code = '$store = new Lockkeeper\Symfony\LockkeeperSemaphoreStore($client);
            $key = unserialize(base64_decode($arguments[0]));
            $mine = $store->exists($key); $store->putOffExpiration($key, 30); $store->delete($key);
            echo json_encode([$mine, $store->exists($key)]);';
        self::assertSame([0, '[true,false]'], self::script($code, base64_encode(serialize($key))));
        self::assertFalse($this->client()->inspect($name)->isHeld);
    }

    public function testAForkedChildHasNothingOfItsParentsSemaphores(): void
    {
        $code = '$store = new Lockkeeper\Symfony\LockkeeperSemaphoreStore($client);
            $store->save($key = new Symfony\Component\Semaphore\Key($arguments[0], 1), 30);
            if (($child = pcntl_fork()) === 0) {
                try { $store->putOffExpiration($key, 9); } catch (Exception $e) { echo get_class($e), " "; }
                $store->delete($key);
                exit(json_encode($store->exists($key)) . " ");
            }
            pcntl_waitpid($child, $status);
            echo json_encode($store->exists($key));';
        self::assertSame([0, SemaphoreExpiredException::class . ' false true'], self::script($code, self::key()));
    }

    public function testAServiceThatIsAwayIsNoFullSemaphore(): void
    {
        $store = new LockkeeperSemaphoreStore($this->client('http://127.0.0.1:1', patience: 0.1));
        $away = (new SemaphoreFactory($store))->createSemaphore('away', 1);
        $failure = $this->thrown(RuntimeException::class, fn () => $away->acquire());
        self::assertStringContainsString('no answer from', $failure->getPrevious()->getMessage());
        $proxy = self::faults('pass', ...array_fill(0, 20, 'cut'));
        $store = new LockkeeperSemaphoreStore($this->client($proxy->url, patience: 0.0));
        $store->save($key = new Key(self::key(), 1), 20);
        $this->thrown(RuntimeException::class, fn () => $store->exists($key));
        $key->resetLifetime();
        $this->thrown(RuntimeException::class, fn () => $store->putOffExpiration($key, 60));
        self::assertLasts(20.0, $key->getRemainingLifetime()); // and not for ever
        $key->resetLifetime();
        $this->thrown(RuntimeException::class, fn () => $store->save($key, 60));
        self::assertLasts(20.0, $key->getRemainingLifetime());
        $this->thrown(SemaphoreReleasingException::class, fn () => $store->delete($key));
        $this->thrown(SemaphoreExpiredException::class, fn () => $store->putOffExpiration($key, 20));
    }

    public function testAnAcquireThatFailsGivesBackWhatItMayHaveBeenGranted(): void
    {
        $proxy = self::faults('lose', 'lose', 'pass');
        $store = new LockkeeperSemaphoreStore($this->client($proxy->url, patience: 0.01));
        $key = new Key($name = self::key(), 1);
        $this->thrown(RuntimeException::class, fn () => $store->save($key, 20));
        self::assertFalse($this->client()->inspect($name)->isHeld);
    }

    public function testAWeightIsSoManyOfTheLimit(): void
    {
        $store = $this->store();
        $name = self::key();
        [$one, $two, $three] = array_map(fn () => new Key($name, 4, 2), range(1, 3));
        $store->save($one, 20);
        $this->thrown(SemaphoreAcquiringException::class, fn () => $store->save(new Key($name, 4, 3), 20));
        $store->save($two, 20);
        $this->thrown(SemaphoreAcquiringException::class, fn () => $store->save($three, 20));
        $this->thrown(SemaphoreAcquiringException::class, fn () => $store->save(new Key($name, 4), 20));
        $store->save($one, 20);
        $store->putOffExpiration($one, 60);
        $store->putOffExpiration($one, 5); // replaces the lease
        self::assertSame([true, true, false], array_map($store->exists(...), [$one, $two, $three]));
        $this->thrown(SemaphoreAcquiringException::class, fn () => $store->save($three, 20));
        $store->delete($one);
        $store->save($three, 20);
        self::assertSame([false, true, true], array_map($store->exists(...), [$one, $two, $three]));
        $this->thrown(SemaphoreExpiredException::class, fn () => $store->putOffExpiration(new Key($name, 4, 2), 20));
    }

    public function testAnyResourceWillDo(): void
    {
        $store = $this->store(prefix: $prefix = self::key(''));
        $store->save(new Key('a//b', 1), 20);
        self::assertTrue($this->client()->inspect($prefix . 'hashed/' . hash('sha256', 'a//b'))->isHeld);
    }

    private function store(mixed ...$options): LockkeeperSemaphoreStore
    {
        return new LockkeeperSemaphoreStore($this->client(), ...$options);
    }

    private function factory(mixed ...$options): SemaphoreFactory
    {
        return new SemaphoreFactory($this->store(...$options));
    }
}
