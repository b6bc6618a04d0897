# frozen_string_literal: true

require "securerandom"

module LockKeeper
  # A claim on a key, or on several at once, from its first request to its release, in a thread of its own.
  #
  # The thread acquires, renews, tells of a loss and releases, whatever the thread of the work does: that
  # may be blocked, interrupted or gone. The rules are stated where they are kept.
  class Claim
    # All in seconds.
    LONGEST_WAIT = 20.0 # of one request; a longer wait repeats it in the same place
    GRACE = 5.0 # after the wait, for the repeats that the service asks for
    HEAR_OUT = 2.0 # for the answer to an abandoned request or to a release, and for `on_lost`
    RELEASE = 5.0 # for the repeats of a release
    LONGEST = RELEASE + Connection::CONNECT + HEAR_OUT # of all of an end
    MOMENT = 0.25 # of an end that its caller does not wait for: a service that answers is told by then

    SUPERSEDED = 3 # answers in a row, after which another program counts as a user of the token

    attr_reader :keys, :token, :fencing_tokens, :slots, :was_released
    attr_accessor :worker # the thread of a block

    def initialize(service, keys, ttl:, wait:, options:, on_lost: nil, on_wait: nil)
      @keys = keys
      @service = service
      @lost_keys = keys.keys
      @fencing_tokens = @slots = {}.freeze
      @wait = wait
      @ttl_ms = (ttl * 1000).round
      @options = options.compact
      # A new token for each claim: nothing orders two requests of one token.
      @token = service.token_prefix + SecureRandom.hex(16)
      @margin = [0.2, ttl / 10].max # The work is told so long before the lease ends.
      @end = @next = 0.0 # the end of the lease, and the moment of the next refresh
      @reason = ""
      @mutex = Mutex.new
      @changed = ConditionVariable.new
      @on_lost = on_lost
      @on_wait = on_wait
      @pid = Process.pid
    end

    # No instance variable is shown: the token is one of them.
    def inspect
      "#<#{self.class} #{@keys.name}>"
    end

    # For the thread of the work

    def start
      @starter = Thread.current
      Claims.add(self)
      thread = Thread.new { run }
      thread.report_on_exception = false
      thread.name = "lockkeeper"
    end

    # False in a forked child, which owns nothing.
    def own?
      @pid == Process.pid
    end

    def remaining
      is_held = own? && !@is_gone && !@work_ended
      is_held ? [0.0, @end - LockKeeper.now].max : 0.0
    end

    # Whether the lease is not held any more, or has to be given up. By the clock: the claim's thread may
    # not have run for a while.
    def lost?
      !own? || @is_lost || over? || LockKeeper.now >= @end
    end

    # Whether the lease has no block, and another thread that lives has begun its work.
    def elsewhere?
      @worker.nil? && @starter != Thread.current && @starter.alive?
    end

    # Waits until the service has decided, and raises unless the claim was granted.
    def await
      @mutex.synchronize { @changed.wait(@mutex, TICK) until @is_decided }
      raise @error if @error

      begin_work
    end

    # Raises unless there is a lease to begin with.
    def begin_work
      raise WaitCancelled, "the claim on #{@keys.name} was given up; nothing is held" if @work_ended

      # This process may have been suspended since the grant.
      raise loss(has_begun: false) if @is_lost || !remaining.positive?
    end

    # Ends the work, or the wait: the thread releases what there is, or may be.
    def finish
      return if !own? || @work_ended

      @mutex.synchronize { end_work }
    end

    # At the end of the program: tells the work of another thread, which keeps its lease while it stops. A
    # claim that is not granted by now begins none.
    def stop
      @mutex.synchronize { end_work unless @is_decided }
      lose("the program ends")
    end

    # As `finish`, without the mutex, which the garbage collector must not take; the thread sees it in a
    # moment.
    def forget
      @work_ended ||= LockKeeper.now if own?
    end

    # Waits for the end of the thread. There may be none, if an exception came before its start.
    def join(longest = LONGEST)
      return unless own?

      over = LockKeeper.now + longest
      @mutex.synchronize do
        @is_nobodys = true unless @is_running
        wait_until(over) { @is_finished || @is_nobodys }
      end
      Claims.remove(self) if @is_nobodys
    end

    # The error of a lease that was lost before the work ended, or of work that was told so.
    def loss(has_begun: true)
      return lost_by("a forked child has no lease of its parent") unless own?

      is_late = @work_ended && @work_ended >= @end
      lost_by(@reason, has_begun) if is_late || @is_lost || !has_begun
    end

    # The error of a lease that was released, or is over by the clock before the claim's thread has seen it.
    def late
      lost_by(over? ? "it was released" : "it could not be renewed in time")
    end

    private

    def lost_by(reason, has_begun = true)
      name = @lost_keys.map { |key| "'#{key}'" }.join(", ")
      LeaseLost.new(@lost_keys.first, @fencing_tokens[@lost_keys.first], reason, has_begun: has_begun, name: name)
    end

    # The thread

    def run
      @mutex.synchronize { @is_running = true }
      begin
        acquire
      rescue Exception => error # rubocop:disable Lint/RescueException -- it is raised in the caller's thread
        decide(error)
        withdraw(@unsure) if @unsure
        return
      end
      decide
      keep_and_release
    rescue Exception => error # rubocop:disable Lint/RescueException
      LockKeeper.logger.warn("lock #{@keys.name}: not released; the lease ends by its TTL: #{error.inspect}")
    ensure
      Claims.remove(self)
      @mutex.synchronize do
        @error ||= WaitCancelled.new("the claim on #{@keys.name} ended before its work") unless @is_decided
        @is_decided = @is_finished = true
        @changed.broadcast
      end
    end

    def keep_and_release
      begin
        keep
      rescue Exception => error # rubocop:disable Lint/RescueException -- nothing renews the lease any more
        lose("its renewal failed: #{error.inspect}")
      end
      # The work keeps what it has of the lease, or of several, while it stops. Nothing renews them any more.
      sleep_until(@end) if @keys.several? || !@is_gone
      release(RELEASE)
      @telling&.join(HEAR_OUT) # Otherwise the program might end before it is told.
    end

    def decide(error = nil)
      @mutex.synchronize do
        @error = error
        @is_decided = true
        @changed.broadcast
      end
    end

    def over?
      !@work_ended.nil?
    end

    # With the mutex.
    def end_work
      @work_ended ||= LockKeeper.now
      @changed.broadcast
    end

    # With the mutex.
    def wait_until(moment)
      until yield || (left = moment - LockKeeper.now) <= 0
        @changed.wait(@mutex, [left, TICK].min)
      end
    end

    def sleep_until(moment)
      @mutex.synchronize { wait_until(moment) { over? || (block_given? && yield) } }
    end

    def call(method, request, limit)
      path, body = request
      Call.new(@service, method, path, limit: limit, token: @token, body: body, mutex: @mutex, changed: @changed)
    end

    # Acquires, or raises, and notes the call that may have acquired all the same.
    def acquire
      call = nil
      is_unsure = is_granted = false
      attempt = superseded = 0
      over = LockKeeper.now + @wait
      named = {}
      absence = Absence.new
      report = Wait.report(@service, @keys.keys, @options[:owner], over, @on_wait) if @on_wait && @wait.positive?
      until over?
        left = absence.end(Float::INFINITY) - Service::ANSWER - LockKeeper.now
        ask = [0.0, [over - LockKeeper.now, LONGEST_WAIT, left].min].max
        body = @options.merge(ttl_ms: @ttl_ms, wait_ms: (ask * 1000).to_i, **named)
        call = call("POST", @keys.acquire(body), ask + Service::ANSWER)
        answer = call.wait { over? }
        # A no of the service is definite, unless an earlier request named a lease. Anything else is
        # repeated with the same token: it receives the lease that was granted, or its old place in line.
        # Of several keys a no leaves what an earlier request has got.
        was_unsure = !named.empty? || (is_unsure && @keys.several?)
        is_unsure = answer.nil? || !answer.no? || was_unsure if answer.nil? || answer.was_sent
        break if answer.nil? || over?

        superseded = answer.code == "superseded" ? superseded + 1 : 0
        is_absent = absence.notes?(answer, call, ask)
        if take(answer, call.sent)
          unless @keys.in?(answer.body)
            raise RequestRefused.new("a proxy changes the key #{@keys.name}", 0, answer.body)
          end
          return is_granted = true if LockKeeper.now < @end - @margin

          answer = Answer.new(failure: "the answer came too late for its TTL: it was slow, " \
                                       "or this process was suspended")
        elsif answer.code == "wait_cancelled" || superseded == SUPERSEDED
          raise WaitCancelled, "the claim on #{@keys.name} has ended elsewhere: #{answer}; nothing is held"
        elsif @keys.several? && answer.others.any?
          # An earlier request of this claim has begun a lease that a repeat does not get.
          release_others(answer)
        elsif answer.code == "lock_lost" || answer.others.any? # The same, of one key: replace it.
          named = answer.others.any? ? { fencing_token: answer.others.values.first } : {}
        elsif answer.code == "lock_held" && LockKeeper.now >= over
          raise busy(answer)
        elsif answer.code == "lock_held" && LockKeeper.now - call.sent > 0.2
          attempt = 0
          next # The wait was cut to the cap of the service.
        end
        answer.refuse
        last = is_absent ? absence.end(over) : over + (answer.status == 429 ? 0 : GRACE)
        give_up(answer) if LockKeeper.now >= last
        warn_of(answer, over) if absence.due?
        next_try = LockKeeper.now + [LockKeeper.pause(attempt), answer.retry_after].max
        attempt += 1
        sleep_until([next_try, last].min)
      end
      raise WaitCancelled, "the claim on #{@keys.name} was given up; nothing is held"
    ensure
      report&.call
      @unsure = call if !is_granted && call && (is_unsure || call.answer.nil?)
    end

    def give_up(answer)
      # The key is held, and its line is full.
      raise busy(answer) if answer.code == "too_many_waiters"

      raise ServiceUnavailable, "#{@keys.name} was not acquired: #{answer}; retry later"
    end

    def busy(answer)
      LockBusy.new(answer.body.fetch("key", @keys.keys.first), answer.body)
    end

    def warn_of(answer, over)
      left = over - LockKeeper.now
      more = left > 1 && left.finite? ? "#{left.to_i} s more " : ""
      LockKeeper.logger.warn("waiting #{more}for #{@keys.name}, retrying: #{answer}")
    end

    # Leaves nothing behind a claim that was given up. The release ends a wait at once, but may overtake
    # the request. So that is heard out for a moment, and what it is granted is released as well.
    def withdraw(call)
      if call.answer.nil?
        call("DELETE", @keys.release({}), HEAR_OUT)
        answer = call.wait(LockKeeper.now + HEAR_OUT)
        call.abort
        return if answer&.no? && !@keys.several?

        take(answer, call.sent) if answer
      end
      @end = LockKeeper.now + HEAR_OUT
      release(HEAR_OUT)
    end

    # Takes a grant to this claim; false for anything else.
    def take(answer, sent)
      body = answer.body
      return false unless [200, 201].include?(answer.status) && body["token"] == @token

      ttl = body["ttl_ms"] / 1000.0
      # In the middle of a short lease, which `max_hold` may have cut, at the latest.
      @margin = [@margin, ttl / 2].min if @fencing_tokens.empty?
      # Counted from the sending: the answer may have been under way for long.
      from = sent + body["waited_ms"] / 1000.0
      # No request shortens a lease, so the later end is the right one.
      @end = [@end, from + ttl].max
      @next = from + [ttl, @ttl_ms / 1000.0].min / 3
      leases = @keys.leases(body)
      @fencing_tokens = leases.to_h { |one| [one["key"], one["fencing_token"]] }.freeze
      @slots = leases.to_h { |one| [one["key"], one["slot"]] }.freeze
      capped = leases.select { |one| one["capped"] }.map { |one| one["key"] }
      @lost_keys = capped.any? ? capped : @keys.keys
      @reason = "it could not be renewed in time"
      @reason = "the service lets no lease of this key last longer (`max_hold`)" if capped.any?
      true
    end

    # Renews at a third of the TTL, until the work or the lease ends.
    def keep
      request = @keys.refresh(@fencing_tokens, @ttl_ms)
      attempt = 0
      calls = []
      loop do
        last = @end - @margin
        sleep_until([@next, last].min) { calls.any?(&:answer) }
        lose(@reason) if !over? && LockKeeper.now >= last
        if over? || @is_lost
          calls.each(&:abort)
          return
        end
        if LockKeeper.now >= @next
          # One that is not answered in half of what is left may be on a silent connection: then there is
          # time for another one. It may also be slow, on a busy machine, so it is not given up.
          calls << call("PUT", request, [0.1, last - LockKeeper.now].max)
          @next = LockKeeper.now + [0.3, [Service::ANSWER, (last - LockKeeper.now) / 2].min].max
        end
        answered, calls = calls.partition(&:answer)
        answered.each do |call|
          answer = call.answer
          if take(answer, call.sent)
            @next = [@next, LockKeeper.now + [0.1, @margin].min].max
            attempt = 0
            calls.each(&:abort).clear
            break
          elsif answer.code == "lock_lost"
            @is_gone = true
            @lost_keys = answer.lost if answer.lost.any?
            lose(answer.to_s)
          else
            @reason = "it could not be renewed in time: #{answer}"
            LockKeeper.logger.info("lock #{@keys.name}: not renewed; retrying: #{answer}")
            @next = LockKeeper.now + LockKeeper.pause(attempt, [0.1, @margin].max)
            attempt += 1
          end
        end
      end
    end

    def lose(reason)
      @mutex.synchronize do
        return if over? || @is_lost

        @reason = reason
        @is_lost = true
      end
      return unless @on_lost

      begin
        @telling = Thread.new { tell }
      rescue ThreadError # The process has too many threads.
        tell
      end
    end

    # In a thread of its own: a callback that blocks does not hold up the release.
    def tell
      @on_lost.call
    rescue Exception => error # rubocop:disable Lint/RescueException -- the claim goes on
      LockKeeper.logger.error("lock #{@keys.name}: the callback for its loss failed: #{error.full_message}")
    end

    # Releases, for so many seconds. A service that cannot be reached is no error of the work.
    def release(limit)
      over = [LockKeeper.now + limit, @end].min
      attempt = 0
      may_be_done = false
      loop do
        answer = call("DELETE", @keys.release(@fencing_tokens), HEAR_OUT).wait
        release_others(answer)
        @was_released = answer.status == 204 || (answer.code == "lock_lost" && may_be_done)
        return if @was_released

        if answer.code == "lock_lost"
          if @is_decided && !@is_lost
            @lost_keys = answer.lost if answer.lost.any?
            @reason = answer.to_s
            @is_lost = true
          end
          return
        end
        may_be_done ||= answer.was_sent && !answer.no?
        pause = LockKeeper.pause(attempt, 1.0)
        attempt += 1
        return if !answer.may_pass? && @fencing_tokens.empty? # The acquire was refused, as this is.

        if LockKeeper.now + pause > over || !answer.may_pass?
          LockKeeper.logger.warn("lock #{@keys.name}: not released; the lease ends by its TTL: #{answer}")
          return
        end
        sleep pause
      end
    end

    # Releases leases that a late request of this claim has begun: nobody knows of them.
    def release_others(answer)
      answer.others.each do |key, number|
        call("DELETE", ["#{Service.path(key || @keys.keys.first)}?fencing_token=#{number}", nil], HEAR_OUT).wait
      end
    end
  end
end
