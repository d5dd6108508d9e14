// Command program is a small program with modules, in the place of berth's in tests.
package main

import "github.com/spf13/pflag"

func main() { pflag.Parse() }
