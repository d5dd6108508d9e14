package screen

import (
	"strings"
	"unicode/utf8"
)

// Key is one key.
type Key struct {
	// Char is the character of a key that has one, else 0.
	Char rune
	Name KeyName
}

// KeyName is a key without a character.
type KeyName uint8

// The keys. CharKey is any with a character.
const (
	CharKey KeyName = iota
	EnterKey
	EscapeKey
	BackspaceKey
	InterruptKey // Ctrl-C
	SuspendKey   // Ctrl-Z
	RedrawKey    // Ctrl-L
	ClearKey     // Ctrl-U
	UpKey
	DownKey
	LeftKey
	RightKey
	PageUpKey
	PageDownKey
	HomeKey
	EndKey
	UnknownKey
)

// sequences are what terminals send for keys without a character, behind ESC.
func sequences() map[string]KeyName {
	return map[string]KeyName{
		"[A": UpKey, "OA": UpKey, "[B": DownKey, "OB": DownKey, "[C": RightKey, "OC": RightKey, "[D": LeftKey, "OD": LeftKey,
		"[5~": PageUpKey, "[6~": PageDownKey,
		"[H": HomeKey, "OH": HomeKey, "[1~": HomeKey, "[7~": HomeKey,
		"[F": EndKey, "OF": EndKey, "[4~": EndKey, "[8~": EndKey,
	}
}

// parseKeys reads the keys at the begin of input and returns what may be the begin of another one.
func parseKeys(input []byte) (keys []Key, rest []byte) {
	for len(input) > 0 {
		k, size := parseKey(input)
		if size == 0 {
			return keys, input
		}
		keys, input = append(keys, k), input[size:]
	}
	return keys, nil
}

// parseKey reads one key. size is 0 if the input may be the begin of a longer one.
func parseKey(input []byte) (k Key, size int) {
	switch c := input[0]; {
	case c == 0x1b:
		return parseEscape(input)
	case c == '\r', c == '\n':
		return Key{Name: EnterKey}, 1
	case c == 0x7f, c == 0x08:
		return Key{Name: BackspaceKey}, 1
	case c == 0x03:
		return Key{Name: InterruptKey}, 1
	case c == 0x1a:
		return Key{Name: SuspendKey}, 1
	case c == 0x0c:
		return Key{Name: RedrawKey}, 1
	case c == 0x15:
		return Key{Name: ClearKey}, 1
	case c < ' ':
		return Key{Name: UnknownKey}, 1
	}
	if !utf8.FullRune(input) {
		return Key{}, 0
	}
	r, size := utf8.DecodeRune(input)
	if r == utf8.RuneError {
		return Key{Name: UnknownKey}, size
	}
	return Key{Char: r}, size
}

// parseEscape reads a sequence: ESC, then [ or O, parameters, and a final character. ESC before anything else is the
// key itself.
func parseEscape(input []byte) (k Key, size int) {
	if len(input) == 1 {
		return Key{}, 0
	}
	if input[1] != '[' && input[1] != 'O' {
		return Key{Name: EscapeKey}, 1
	}
	for i := 2; i < len(input); i++ {
		c := input[i]
		if c >= 0x40 && c <= 0x7e {
			if name, ok := sequences()[string(input[1:i+1])]; ok {
				return Key{Name: name}, i + 1
			}
			return Key{Name: UnknownKey}, i + 1
		}
		if c < 0x20 || c > 0x7e {
			return Key{Name: UnknownKey}, i
		}
	}
	if len(input) > maxSequence {
		return Key{Name: UnknownKey}, len(input)
	}
	return Key{}, 0
}

// maxSequence bounds the bytes of a sequence.
const maxSequence = 32

// endKeys reads input that is followed by nothing for a while: an ESC alone is the key.
func endKeys(input []byte) []Key {
	var keys []Key
	if strings.HasPrefix(string(input), "\x1b") {
		keys, input = append(keys, Key{Name: EscapeKey}), input[1:]
	}
	more, _ := parseKeys(input)
	return append(keys, more...)
}
