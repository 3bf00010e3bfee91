"""`asyncio.run` works, with timeouts and a child process."""

import asyncio
import sys


async def main() -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "print(6 * 7)", stdout=asyncio.subprocess.PIPE)
    text, _ = await process.communicate()
    print(text, process.returncode)
    try:
        await asyncio.wait_for(asyncio.sleep(5), 0.05)
    except asyncio.TimeoutError:
        print("too slow")


asyncio.run(main())
