module lockkeeper.example/go

go 1.19
