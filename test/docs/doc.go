// Package docs tests the pages for people: each command line is one that berth has, each file in
// them is one that berth reads, and each link leads somewhere. Nothing is run.
package docs
