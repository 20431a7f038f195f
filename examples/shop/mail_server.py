import asyncio


async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    print((await reader.read()).decode())
    writer.close()


async def main() -> None:
    server = await asyncio.start_server(receive, "127.0.0.1", 2525)
    await server.serve_forever()


asyncio.run(main())
