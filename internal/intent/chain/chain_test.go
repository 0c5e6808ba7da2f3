package chain_test

import (
	"strings"
	"testing"

	"intentd/internal/intent/chain"
)

// vectors are the test cases of https://eips.ethereum.org/EIPS/eip-55.
var vectors = []string{
	// All caps.
	"0x52908400098527886E0F7030069857D2E4169EE7",
	"0x8617E340B3D01FA5F11F306F4090FD50E238070D",
	// All lower.
	"0xde709f2102306220921060314715629080e2fb77",
	"0x27b1fdb04752bbc536007a920d24acb045561c26",
	// Normal.
	"0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed",
	"0xfB6916095ca1df60bB79Ce92cE3Ea74c37c5d359",
	"0xdbF03B407c01E7cD3CBea99509d93f8DDDC8C6FB",
	"0xD1220A0cf47c7B9Be7A2E6BA89F429762e7b9aDb",
}

func evm(t testing.TB) chain.Chain {
	t.Helper()
	c, err := chain.Parse("evm:31337")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestParse(t *testing.T) {
	t.Parallel()

	t.Run("Known", func(t *testing.T) {
		t.Parallel()
		for _, s := range []string{"evm:1", "evm:10", "evm:31337", "evm:9223372036854775807"} {
			c, err := chain.Parse(s)
			if err != nil || c.String() != s {
				t.Errorf("Parse(%q) = %q, %v", s, c, err)
			}
		}
		a, _ := chain.Parse("evm:1")
		b, _ := chain.Parse("evm:" + "1")
		if a != b {
			t.Error("equal chains differ")
		}
	})

	t.Run("Refused", func(t *testing.T) {
		t.Parallel()
		const (
			shape     = "must be namespace:reference, such as evm:31337"
			namespace = "has an unknown namespace, known is evm"
			reference = "must be evm: and a decimal chain id from 1 to 2^63-1 without a leading zero"
		)
		for s, want := range map[string]string{
			"":                                   shape,
			"evm":                                shape,
			"31337":                              shape,
			":1":                                 namespace,
			"EVM:1":                              namespace,
			" evm:1":                             namespace,
			"eip155:1":                           namespace,
			"solana:mainnet":                     namespace,
			"evm\x00:1":                          namespace,
			"evm:":                               reference,
			"evm:0":                              reference,
			"evm:01":                             reference,
			"evm:+1":                             reference,
			"evm:-1":                             reference,
			"evm:1 ":                             reference,
			"evm:1\n":                            reference,
			"evm:1_000":                          reference,
			"evm:0x1":                            reference,
			"evm:1e3":                            reference,
			"evm:1:2":                            reference,
			"evm:١":                              reference,
			"evm:9223372036854775808":            reference,
			"evm:18446744073709551617":           reference,
			"evm:1\x00":                          reference,
			"evm:" + strings.Repeat("9", 60_000): reference,
		} {
			if _, err := chain.Parse(s); err == nil || err.Error() != want {
				t.Errorf("Parse(%.40q) = %v, want %s", s, err, want)
			}
		}
	})
}

func TestChain_Address(t *testing.T) {
	t.Parallel()

	t.Run("EIP55Vectors", func(t *testing.T) {
		t.Parallel()
		for _, want := range vectors {
			for _, s := range []string{want, strings.ToLower(want), "0x" + strings.ToUpper(want[2:])} {
				if got, err := evm(t).Address(s); err != nil || got != want {
					t.Errorf("Address(%q) = %q, %v, want %q", s, got, err, want)
				}
			}
		}
	})

	t.Run("EveryWrongCapital", func(t *testing.T) {
		t.Parallel()
		for _, v := range vectors[4:] {
			for i := 2; i < len(v); i++ {
				c := v[i] ^ 0x20
				if v[i] <= '9' {
					continue
				}
				s := v[:i] + string(c) + v[i+1:]
				if _, err := evm(t).Address(s); err == nil || err.Error() != "has a wrong EIP-55 checksum" {
					t.Errorf("Address(%q): %v", s, err)
				}
			}
		}
	})

	t.Run("Refused", func(t *testing.T) {
		t.Parallel()
		const (
			shape = "must be 0x and 40 hex digits"
			zero  = "must not be the zero address"
		)
		digits := strings.Repeat("a", 40)
		for s, want := range map[string]string{
			"":                              shape,
			"0x":                            shape,
			digits:                          shape,
			"0X" + digits:                   shape,
			"0x" + digits[1:]:               shape,
			"0x" + digits + "a":             shape,
			"0x" + digits[1:] + "g":         shape,
			"0x" + digits[1:] + "\x00":      shape,
			"0x" + digits[2:] + "é":         shape,
			" 0x" + digits:                  shape,
			"0x" + digits + "\n":            shape,
			"0x" + strings.Repeat("a", 1e5): shape,
			"0x" + strings.Repeat("0", 40):  zero,
		} {
			if _, err := evm(t).Address(s); err == nil || err.Error() != want {
				t.Errorf("Address(%.50q): %v, want %s", s, err, want)
			}
		}
	})

	t.Run("DigitsOnly", func(t *testing.T) {
		t.Parallel()
		s := "0x" + strings.Repeat("0", 39) + "1"
		if got, err := evm(t).Address(s); err != nil || got != s {
			t.Errorf("Address(%q) = %q, %v", s, got, err)
		}
	})
}

func FuzzChain_Address(f *testing.F) {
	for _, v := range vectors {
		f.Add(v)
		f.Add(strings.ToLower(v))
		f.Add("0x" + strings.ToUpper(v[2:]))
	}
	for _, s := range []string{"", "0x", "0x" + strings.Repeat("0", 40), "0x5aaeb6053F3E94C9b9A09f33669435E7Ef1BeAed", "0x\xff"} {
		f.Add(s)
	}
	c := evm(f)
	f.Fuzz(func(t *testing.T, s string) {
		got, err := c.Address(s)
		if err != nil {
			if got != "" {
				t.Fatalf("Address(%q) = %q beside an error", s, got)
			}
			return
		}
		if !strings.EqualFold(got, s) {
			t.Fatalf("Address(%q) = %q, another address", s, got)
		}
		for _, again := range []string{got, strings.ToLower(s)} {
			if g, err := c.Address(again); err != nil || g != got {
				t.Fatalf("Address(%q) = %q, but Address(%q) = %q, %v", s, got, again, g, err)
			}
		}
	})
}

func TestChain_TxHash(t *testing.T) {
	t.Parallel()

	t.Run("LowerCase", func(t *testing.T) {
		t.Parallel()
		lower := "0x" + strings.Repeat("0a", 32)
		for _, s := range []string{lower, "0x" + strings.Repeat("0A", 32), "0x" + strings.Repeat("0a0A", 16)} {
			if got, err := evm(t).TxHash(s); err != nil || got != lower {
				t.Errorf("TxHash(%q) = %q, %v", s, got, err)
			}
		}
	})

	t.Run("Refused", func(t *testing.T) {
		t.Parallel()
		digits := strings.Repeat("0a", 32)
		for _, s := range []string{"", "0x", digits, "0X" + digits, "0x" + digits[1:], "0x" + digits + "a", "0x" + digits[1:] + "g", "0x" + digits[1:] + "\x00"} {
			if _, err := evm(t).TxHash(s); err == nil || err.Error() != "must be 0x and 64 hex digits" {
				t.Errorf("TxHash(%q): %v", s, err)
			}
		}
	})
}
