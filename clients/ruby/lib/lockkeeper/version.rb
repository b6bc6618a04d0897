# frozen_string_literal: true

module LockKeeper
  VERSION = "1.0.0.rc1"
end
