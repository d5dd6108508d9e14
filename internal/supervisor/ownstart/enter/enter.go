//go:build cgo

package enter

import "C"
