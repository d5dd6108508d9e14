//go:build !berth_unpack

package program

// Own returns the program that belongs to this berth.
func Own() Program { return Self() }
