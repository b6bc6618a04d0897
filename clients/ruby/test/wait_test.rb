# frozen_string_literal: true

require_relative "helper"

class WaitTest < TestCase
  def test_waits_for_ever
    lease = @client.lock("k")
    Thread.new { sleep 0.5 and lease.release }
    assert_equal(1, @client.lock("k", wait: nil) { 1 })
  end

  def test_a_claim_released_elsewhere
    @fake.replace["POST"] = ->(*) { problem(409, "wait_cancelled") }
    assert_raises(LockKeeper::WaitCancelled) { @client.lock("k", wait: 5) { flunk } }
  end

  def test_a_superseded_claim_asks_again_and_gives_up_after_three_times
    [[2, nil], [3, LockKeeper::WaitCancelled]].each do |times, error|
      answers = [problem(409, "superseded")] * times
      @fake.replace["POST"] = ->(*) { answers.pop }
      count = @fake.count("POST")
      began = LockKeeper.now
      error ? assert_raises(error) { @client.lock("k", wait: 5) { flunk } } : @client.lock("k", wait: 5) { nil }
      assert_operator LockKeeper.now - began, :>, 2
      assert_equal 3, @fake.count("POST") - count
    end
    assert_equal [{ "fencing_token" => "101" }, {}], @fake.seen.select { |one| one.method == "DELETE" }.map(&:body)
  end

  def test_a_lease_of_an_earlier_request_is_replaced_also_if_that_answer_is_lost
    @fake.replace["POST"] = lambda do |key, headers, body|
      if @fake.count("POST") == 1
        @fake.held[key] = [headers["lock-token"], 7]
        next problem(409, "lock_held", mine: true, fencing_token: 7)
      end
      answer = @fake.answer("POST", key, headers, body)
      @fake.count("POST") == 2 ? [502, nil] : answer
    end
    @client.lock("k") { |lease| assert_equal 102, lease.fencing_token }
    assert_equal [nil, 7, 7, 101], @fake.seen.select { |one| one.method == "POST" }.map { |one| one.body["fencing_token"] }
    assert free?
  end

  def test_a_claim_that_names_a_lease_leaves_nothing_if_it_is_refused
    @fake.replace["POST"] = lambda do |key, headers, body|
      next problem(409, "lock_held") if body.key?("fencing_token")

      @fake.held[key] = [headers["lock-token"], 7]
      problem(409, "lock_held", mine: true, fencing_token: 7)
    end
    assert_raises(LockKeeper::LockBusy) { @client.lock("k") { flunk } }
    assert_nothing_is_left
  end

  # The time limits of callers

  Limit = Class.new(Exception) # rubocop:disable Lint/InheritException -- as those of Timeout and of Sidekiq

  # In line and in the block. The withdrawal goes on behind the caller.
  def test_a_time_limit_of_the_caller_holds_with_a_silent_service
    silence = Queue.new
    [%w[POST DELETE], %w[DELETE]].each do |silent|
      @fake.replace.update(silent.to_h { |method| [method, ->(*) { silence.pop && nil }] })
      posts, deletes = %w[POST DELETE].map { |method| @fake.count(method) }
      is_at_work = false
      thread = Thread.new { @client.lock("k", ttl: 60, wait: 600) { is_at_work = true and sleep } }
      thread.report_on_exception = false
      until_true { silent.size == 2 ? @fake.count("POST") > posts : is_at_work }
      thread.raise(Limit)
      assert_raises(Limit) { thread.join(15) or flunk("it goes on") }
      refute_empty LockKeeper::Claims.open, "the caller waited for the service"
      until_true { @fake.count("DELETE") > deletes }
      @fake.replace.clear
      8.times { silence << true }
      assert_nothing_is_left
      silence.clear
    end
  end

  def test_an_exception_at_any_moment_leaves_nothing
    100.times do |number|
      thread = Thread.new { @client.lock("k", ttl: 600, wait: 60) { sleep 0.005 } }
      thread.report_on_exception = false
      sleep number / 10_000.0
      thread.raise(Limit)
      begin
        thread.join
      rescue Limit
        nil
      end
    end
    assert_nothing_is_left
  end

  def test_an_exception_just_before_the_thread_starts_costs_no_time_and_leaves_nothing
    threads = []
    interrupt = lambda do |*_, &block|
      threads << block
      raise Limit
    end
    Thread.stub(:new, interrupt) { assert_raises(Limit) { @client.lock("k") { flunk } } }
    assert_empty LockKeeper::Claims.open
    threads.each(&:call) # A thread that did start, and runs only now, does nothing.
    assert_empty @fake.seen
  end

  def test_after_an_end_between_two_attempts_nothing_is_acquired
    @fake.replace["POST"] = ->(*) { [502, nil] }
    has_paused = false
    LockKeeper.stub(:pause, ->(*) { has_paused = true and 3.0 }) do
      thread = Thread.new { @client.lock("k", wait: 60) { flunk } }
      thread.report_on_exception = false
      until_true { has_paused }
      thread.kill.join
      assert_nothing_is_left
    end
    assert_equal [1, 1], [@fake.count("POST"), @fake.count("DELETE")]
  end

  # An absence of the service

  def test_a_claim_that_never_reached_the_service_gives_up_and_one_that_stood_in_line_waits
    nowhere = "http://127.0.0.1:#{TCPServer.open("127.0.0.1", 0) { |listener| listener.addr[1] }}"
    absence = LockKeeper::Absence
    [[3600, :BEFORE_LINE], [nil, :BEFORE_LINE], [0.1, :WITHOUT_WAIT], [0, :WITHOUT_WAIT]].each do |wait, most|
      @log.truncate(0)
      error = with(absence, most, 0.8) do
        with(absence, :FIRST, 0) do
          assert_raises(LockKeeper::ServiceUnavailable) do
            LockKeeper::Client.new(nowhere).lock("k", wait: wait) { flunk }
          end
        end
      end
      told = "no answer from #{nowhere}: Connection refused"
      assert_equal "'k' was not acquired: #{told}; retry later", error.message
      more = wait == 3600 ? "35[0-9][0-9] s more " : ""
      assert_match(/WARN -- : waiting #{more}for 'k', retrying: #{told}\n\z/, @log.string)
      assert_equal 1, @log.string.lines.size
    end
    [0, 0.3].each do |lasted|
      answers = [[502, nil]] * 6 + [problem(409, "lock_held")]
      @fake.replace["POST"] = lambda do |*|
        sleep lasted if answers.size == 7
        answers.pop
      end
      with(absence, :BEFORE_LINE, 0.2) do
        with(absence, :WITHOUT_WAIT, 0.1) do
          LockKeeper.stub(:pause, 0.1) { @client.lock("k", wait: 600) { assert_empty answers } }
        end
      end
    end
  end

  def test_the_end_of_an_absence
    answer = LockKeeper::Answer
    refused = answer.new.tap { |one| one.was_sent = false }
    silent = answer.new
    page = answer.new(504)
    busy = answer.new(409, { "code" => "lock_held", "type" => "urn:lockkeeper:lock_held" })
    hour = 3600.0
    [[nil, refused, 0, hour, 60], [nil, refused, 0, 30, 30], [nil, refused, 0, 0, 5], [nil, refused, 0, 3, 5],
     [busy, refused, 0, hour, hour], [busy, refused, 0, 0, 5], [nil, silent, 25, hour, 35],
     [nil, silent, 9000, hour, 35], [nil, silent, 0.9, hour, 60], [nil, silent, 1, hour, hour],
     [nil, page, 10, hour, hour], [nil, answer.new(502), 10, hour, 60], [nil, refused, 4, hour, 60]].each do |before, came, lasted, over, expected|
      absence = LockKeeper::Absence.new
      clock = 100.0
      call = Struct.new(:sent).new(clock)
      LockKeeper.stub(:now, -> { clock }) do
        refute absence.notes?(before, call, 0) if before
        clock += lasted
        assert absence.notes?(came, call, 20)
        assert_equal expected, absence.end(clock + over) - clock, [before, came.status, lasted, over].inspect
      end
    end
  end

  def test_a_warning_after_five_seconds_and_then_each_minute
    absence = LockKeeper::Absence.new
    clock = 100.0
    call = Struct.new(:sent).new(clock)
    told = []
    LockKeeper.stub(:now, -> { clock }) do
      200.times do
        assert absence.notes?(LockKeeper::Answer.new(502), call, 0)
        told << clock - 100 if absence.due?
        clock += 1
      end
    end
    assert_equal [5, 65, 125, 185], told
  end

  def test_a_full_service_is_told_at_the_end_of_the_wait
    @fake.replace["POST"] = ->(*) { problem(429, "quota_exceeded") }
    error = assert_raises(LockKeeper::ServiceUnavailable) { @client.lock("k") { flunk } }
    assert_includes error.message, "quota_exceeded"
    assert_equal [1, 0], [@fake.count("POST"), @fake.count("DELETE")]
  end

  # The progress of a wait

  def in_line(owners, waiters: owners.size)
    queue = owners.map { |owner| { owner: owner } }
    @fake.replace["GET"] = lambda do |key, *|
      [200, { key: key, held: true, owner: "web-1", ttl_ms: 900, waiters: waiters, queue: queue }]
    end
  end

  def test_a_wait_is_told_when_it_has_begun_and_once_a_minute
    in_line(%w[other me])
    @fake.held["k"] = ["of another", 1]
    told = Queue.new
    with(LockKeeper::Wait, :NEXT, 0.1) do
      with(LockKeeper::Wait, :FIRST, 0.1) do
        thread = Thread.new { @client.lock("k", wait: 60, owner: "me", on_wait: ->(wait) { told << wait }) { 1 } }
        waits = Array.new(3) { told.pop }
        lose
        assert_equal 1, thread.value
        assert_equal [["k", "web-1", 1]] * 3, waits.map { |one| [one.key, one.owner, one.ahead] }
        assert_operator waits[2].waited, :>, waits[0].waited
        assert_equal 900, waits[0].raw["ttl_ms"]
        assert_equal "100", @fake.seen.find { |one| one.method == "GET" }.body["waiters"]
        # Its thread ends with the wait, and so tells of no other one.
        until_true { Thread.list.none? { |one| one.name == "lockkeeper wait" } }
      end
    end
  end

  def test_a_place_is_told_only_if_one_claim_has_our_name_and_a_lease_that_is_free_is_no_wait
    told = Queue.new
    with(LockKeeper::Wait, :FIRST, 0.01) do
      in_line(%w[me me])
      over = LockKeeper::Wait.report(@client.instance_variable_get(:@service), ["k"], "me", 1e12, told.method(:<<))
      assert_nil told.pop.ahead
      over.call
      in_line([])
      count = @fake.count("GET")
      with(LockKeeper::Wait, :RETRY, 0.01) do
        over = LockKeeper::Wait.report(@client.instance_variable_get(:@service), ["k"], "me", 1e12, told.method(:<<))
        until_true { @fake.count("GET") > count + 3 }
        over.call
      end
      assert_empty told
    end
  end

  def test_a_wait_without_a_thread_for_its_progress_goes_on
    start = Thread.method(:new).unbind.bind(Thread)
    few = lambda do |*arguments, &block|
      raise ThreadError, "can't create Thread" if caller_locations.any? { |one| one.label.end_with?("report") }

      start.call(*arguments, &block)
    end
    Thread.stub(:new, few) { assert_equal(1, @client.lock("k", wait: 60, on_wait: ->(_) { flunk }) { 1 }) }
    assert_includes @log.string, "lock 'k': its wait is not told: can't create Thread"
  end

  def test_a_callback_of_a_wait_that_fails_or_is_slow_breaks_nothing
    in_line(%w[me])
    silence = Queue.new
    [-> { raise "of the callback" }, -> { silence.pop }].each do |callback|
      @fake.held["k"] = ["of another", 1]
      called = Queue.new
      with(LockKeeper::Wait, :FIRST, 0.01) do
        thread = Thread.new { @client.lock("k", wait: 60, on_wait: ->(_) { called << 1 and callback.call }) { 1 } }
        called.pop
        lose
        assert_equal 1, thread.value
      end
    end
    silence << true
    assert_includes @log.string, "lock 'k': the callback for its wait failed"
  end
end
