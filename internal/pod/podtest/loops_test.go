package podtest

import "testing"

func TestFaultsOnFake(t *testing.T) { RunFaults(t, Fake()) }

func TestCrashesOnFake(t *testing.T) { RunCrashes(t, Fake()) }
