package config

import (
	"fmt"
	"time"
)

// Duration is a time.Duration that is written as "10m" in files and flags.
type Duration time.Duration

// UnmarshalText parses "10m".
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%q is not a duration such as 90s, 10m or 4h", text)
	}
	*d = Duration(parsed)
	return nil
}

// MarshalText writes "10m0s".
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

func (d Duration) String() string { return time.Duration(d).String() }

// Set makes a Duration a flag value.
func (d *Duration) Set(text string) error { return d.UnmarshalText([]byte(text)) }

// Type names the flag value in help.
func (d *Duration) Type() string { return "duration" }
