package pause

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/arch/arm64/arm64asm"
	"golang.org/x/arch/x86/x86asm"
)

// TestListing: the words beside the code say what the code does, and each jump leads to an
// instruction.
func TestListing(t *testing.T) {
	for name, test := range map[string]struct {
		code   []instruction
		decode func(code []byte, at int) (text string, size, jump int, err error)
	}{
		"amd64": {amd64(), decodeAMD64},
		"arm64": {arm64(), decodeARM64},
	} {
		at := 0
		starts, jumps := map[int]bool{}, map[int]string{}
		for _, i := range test.code {
			text, size, jump, err := test.decode(i.code, at)
			if err != nil || size != len(i.code) {
				t.Fatalf("%s: %#x %x (%s): %d bytes, %v", name, at, i.code, i.text, size, err)
			}
			if text != i.text {
				t.Errorf("%s: %#x %x is %q, not %q", name, at, i.code, text, i.text)
			}
			starts[at] = true
			if jump >= 0 {
				jumps[jump] = i.text
			}
			at += size
		}
		if len(jumps) == 0 {
			t.Errorf("%s: no jumps were found", name)
		}
		for jump, text := range jumps {
			if !starts[jump] {
				t.Errorf("%s: %q leads into an instruction", name, text)
			}
		}
	}
}

// decodeAMD64 returns the text of an instruction at an offset, its size, and where it may
// jump, or -1.
func decodeAMD64(code []byte, at int) (text string, size, jump int, err error) {
	i, err := x86asm.Decode(code, 64)
	if err != nil {
		return "", 0, 0, err
	}
	if by, jumps := i.Args[0].(x86asm.Rel); jumps {
		jump = at + i.Len + int(by)
		return fmt.Sprintf("%s %#x", strings.ToLower(i.Op.String()), jump), i.Len, jump, nil
	}
	return x86asm.IntelSyntax(i, uint64(at), nil), i.Len, -1, nil
}

func decodeARM64(code []byte, at int) (text string, size, jump int, err error) {
	i, err := arm64asm.Decode(code)
	if err != nil {
		return "", 0, 0, err
	}
	text = arm64asm.GNUSyntax(i)
	for _, arg := range i.Args {
		if by, jumps := arg.(arm64asm.PCRel); jumps {
			before, _, _ := strings.Cut(text, ".+")
			before, _, _ = strings.Cut(before, ".-")
			jump = at + int(by)
			return fmt.Sprintf("%s%#x", before, jump), 4, jump, nil
		}
	}
	return text, 4, -1, nil
}
