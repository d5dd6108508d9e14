package harness

import (
	"os"
	"strconv"
	"testing"
)

// Seed returns the seed that an environment variable names, to repeat an earlier run, or 0.
func Seed(t testing.TB, variable string) uint64 {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return 0
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return seed
}

// Number returns the number that an environment variable has, or another if it is not set.
func Number(t testing.TB, variable string, otherwise int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return n
}
