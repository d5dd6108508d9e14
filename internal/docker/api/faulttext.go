package api

import "strings"

// isDiskFull reports whether an engine failed because its disk is full. It sends that as text
// alone, with status 500.
func isDiskFull(err error) bool {
	text := err.Error()
	return strings.Contains(text, "no space left on device") || strings.Contains(text, "disk quota exceeded")
}
