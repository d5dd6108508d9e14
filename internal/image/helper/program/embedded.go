//go:build berth_unpack

package program

import _ "embed"

// The Makefile builds it just before.
//
//go:embed berth-unpack
var embedded []byte

// Own returns the program that belongs to this berth.
func Own() Program { return newInMemory(embedded, Self()) }
