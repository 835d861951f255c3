package main

// README.md prints this program.
func Example() {
	main()
	// Output: hello
}
