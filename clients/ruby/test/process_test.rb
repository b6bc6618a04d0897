# frozen_string_literal: true

require "open3"
require "rbconfig"
require_relative "helper"

# Forked children, and the end of the program.
class ProcessTest < TestCase
  def child
    pid = fork do
      ok = begin
        yield
      rescue Exception => error # rubocop:disable Lint/RescueException
        warn error.full_message
        false
      end
      exit!(ok ? 0 : 1)
    end
    assert_equal 0, Process.wait2(pid).last.exitstatus
  end

  def test_a_child_owns_nothing
    @client.lock("k", ttl: 60) do |lease|
      child do
        lost = begin
          lease.check!
        rescue LockKeeper::LeaseLost => error
          error.message.include?("a forked child has no lease of its parent")
        end
        lost && lease.lost? && !lease.still_mine? && !lease.release && LockKeeper::Claims.open.empty?
      end
      assert lease.still_mine?
      refute free?
    end
    assert free?
  end

  # As `fork` without a block, after which the child returns from the block of its parent.
  def test_a_child_that_leaves_the_block_hears_of_it_and_releases_nothing
    parent = Process.pid
    begin
      @client.lock("k", ttl: 60) do
        @child = fork
        if @child
          assert_equal 0, Process.wait2(@child).last.exitstatus
          refute free?
        end
      end
    rescue LockKeeper::LeaseLost
      exit!(7) if Process.pid == parent
      exit!(0)
    ensure
      exit!(8) if Process.pid != parent
    end
    assert free?
  end

  def test_a_child_neither_renews_nor_releases
    @client.lock("k", ttl: 60) do
      count = @fake.seen.size
      pid = fork { GC.start } # It runs all of `at_exit` as well.
      Process.wait(pid)
      assert_equal count, @fake.seen.size
      refute free?
    end
  end

  def test_a_child_uses_the_client_and_its_end_releases
    @client.lock("k") do
      pid = fork do
        exit!(3) if @client.try_lock("k")
        @client.lock("of the child") { nil }
        @client.lock("left", ttl: 600)
        Minitest.class_variable_set(:@@after_run, [])
        exit(0)
      end
      Process.wait(pid)
      assert_includes @fake.seen.map(&:key), "left"
      assert free?("left")
      refute free?
    end
  end

  def program(text, code: 0, signal: nil)
    lib = HERE.parent + "lib"
    text = "require 'lockkeeper'\nC = LockKeeper::Client.new\n#{text}"
    _, errors, status = Open3.capture3({ "LOCKKEEPER_URL" => @fake.url }, RbConfig.ruby, "-w", "-I", lib.to_s, "-e", text)
    assert_equal [code, signal], [status.exitstatus, status.termsig], errors
    errors
  end

  def test_the_end_of_the_program_releases
    assert_equal "", program("lease = C.lock('k', ttl: 600)")
    assert_equal 1, @fake.count("POST")
    assert free?
  end

  def test_an_exit_an_exception_and_a_signal_release
    program("lease = C.lock('k', ttl: 600); exit 7", code: 7)
    assert free?
    program("C.lock('k', ttl: 600) { exit 6 }", code: 6)
    assert free?
    program("C.lock('k', ttl: 600) { raise KeyError }", code: 1)
    assert free?
    program("C.lock('k', ttl: 600) { Process.kill('TERM', $$); sleep }", code: nil, signal: 15)
    assert free?
    assert_equal 4, @fake.count("DELETE")
  end

  def test_a_process_that_was_stopped_finds_its_lease_lost_at_once
    text = "require 'lockkeeper'\nC = LockKeeper::Client.new\n" \
           "C.lock('k', ttl: 3) { |lease| $stdout.syswrite('x'); $stdin.read(1); exit!(lease.lost? ? 7 : 8) }"
    lib = (HERE.parent + "lib").to_s
    IO.popen([{ "LOCKKEEPER_URL" => @fake.url }, RbConfig.ruby, "-I", lib, "-e", text], "r+") do |program|
      program.read(1)
      Process.kill("STOP", program.pid)
      sleep 3.2
      program.write("x")
      program.flush
      Process.kill("CONT", program.pid)
      assert_equal 7, Process.wait2(program.pid).last.exitstatus
    end
  end

  def test_a_thread_in_line_leaves_nothing
    @fake.held["k"] = ["of another", 1]
    @fake.replace["GET"] = ->(key, *) { [200, { key: key, held: @fake.count("POST").positive? }] }
    program("Thread.new { C.lock('k', wait: 50) { } }; sleep 0.05 until C.get('asked').held?")
    assert_equal 1, @fake.count("POST")
    assert_operator @fake.count("DELETE"), :>=, 1
  end

  # Ruby kills the thread in any case, and its block has ended before the lease does.
  def test_a_thread_at_work_ends_before_its_lease
    text = "q = Queue.new\n" \
           "Thread.new { C.lock('k', ttl: 600) { begin; q << 1; sleep; ensure; sleep 0.3; C.get('of the block'); end } }\n" \
           "q.pop"
    assert_equal "", program(text)
    assert_equal([%w[POST k], ["GET", "of the block"], %w[DELETE k]], @fake.seen.map { |one| [one.method, one.key] })
  end

  def test_threads_that_lock_in_a_loop_leave_nothing
    text = "work = ->(key) { loop { C.lock(key, ttl: 600) { sleep 0.01 } rescue LockKeeper::Error } }\n" \
           "6.times { |i| Thread.new { work.call(i.to_s) } }\nsleep 0.5"
    assert_equal "", program(text)
    assert_empty @fake.held
  end

  def test_a_thread_that_is_killed_ends_though_its_lease_is_lost
    at_work = Queue.new
    thread = Thread.new do
      loop do
        @client.lock("k", ttl: 600) do
          at_work << @fake.held.delete("k")
          sleep
        end
      rescue LockKeeper::LeaseLost
        at_work << "another block"
      end
    end
    at_work.pop
    thread.kill
    assert thread.join(10), "it goes on"
    assert_empty at_work
  end

  # As a block is killed first, but nothing says where the work of this lease ends.
  def test_a_thread_with_a_lease_without_a_block_is_told_before_its_release
    ["sleep 0.01 until lease.lost?; lease.check! rescue C.get($!.reason); lease.release",
     "begin; loop { lease.check!; sleep 0.01 }; ensure; C.get('the program ends') if lease.lost?; end"].each do |work|
      @fake.seen.clear
      program("q = Queue.new; Thread.new { lease = C.lock('k', ttl: 600); q << 1; #{work} }; q.pop")
      assert_equal([%w[POST k], ["GET", "the program ends"], %w[DELETE k]], @fake.seen.map { |one| [one.method, one.key] })
    end
  end

  def test_a_thread_with_a_lease_that_does_not_stop_keeps_it_until_its_ttl
    program("LockKeeper::Claim.send(:remove_const, :LONGEST); LockKeeper::Claim::LONGEST = 0.5\n" \
            "q = Queue.new; Thread.new { lease = C.lock('k', ttl: 0.9); q << 1; sleep; lease.release }; q.pop")
    assert_equal %w[POST], @fake.seen.map(&:method)
  end

  def test_a_lease_that_the_program_still_has_at_its_end_is_lost
    text = "at_exit { C.get(LEASE.lost? ? 'lost' : 'mine') }; LEASE = C.lock('k', ttl: 600)"
    program(text)
    assert_equal %w[k k lost], @fake.seen.map(&:key)
  end

  def test_a_claim_within_a_block_of_the_end_is_released_as_well
    program("at_exit { C.lock('k', ttl: 600) }")
    assert_equal %w[POST DELETE], @fake.seen.map(&:method)
  end
end
